"""`dsprof watch` in a terminal: redraws the screen as the run goes on, and takes keys."""

from __future__ import annotations

from threading import Event
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Footer, Static

from dsprof.live.now import RunNow
from dsprof.live.screen import Chosen, screen
from dsprof.live.watching import Watched, repeat


class WatchApp(App[None]):
    """Shows a run until `q` is pressed."""

    CSS = "Static { width: 100%; height: 1fr; } Screen { background: ansi_default; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("down,j", "rank(1)", "rank", key_display="↑↓"),
        Binding("up,k", "rank(-1)", show=False),
        Binding("left,h", "step(-1)", "step", key_display="←→"),
        Binding("right,l", "step(1)", show=False),
        Binding("pagedown", "rank(16)", show=False),
        Binding("pageup", "rank(-16)", show=False),
        Binding("f", "finding", "finding"),
        Binding("escape", "fold", "close"),
    ]

    def __init__(self, watched: Watched) -> None:
        super().__init__(ansi_color=True)
        self._watched, self.chosen = watched, Chosen()
        self._now: RunNow | None = None
        self._stopped = Event()

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static(id="run", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.run_worker(self._look, thread=True, exit_on_error=True)

    def on_unmount(self) -> None:
        """Look no more."""
        self._stopped.set()

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._draw()

    def action_rank(self, by: int) -> None:
        """Choose another rank."""
        if self._now is not None:
            self.chosen.move_rank(by, self._now)
        self._draw()

    def action_step(self, by: int) -> None:
        """Choose another of the recent steps; at first the newest."""
        if self._now is not None:
            self.chosen.move_step(by, self._now.strip)
        self._draw()

    def action_finding(self) -> None:
        """Unfold the next finding."""
        count = len(self._now.findings) if self._now is not None else 0
        place = self.chosen.finding
        self.chosen.finding = None if not count else 0 if place is None else (place + 1) % count
        self._draw()

    def action_fold(self) -> None:
        """Unfold no finding, and choose no step."""
        self.chosen.finding = self.chosen.step = None
        self._draw()

    def _look(self) -> None:
        repeat(self._watched, self._stopped, lambda now: self.call_from_thread(self._show, now))

    def _show(self, now: RunNow) -> None:
        self._now = now
        self._draw()

    def _draw(self) -> None:
        if self._now is None:
            return
        lines = screen(self._now, self.size.width, self.size.height - 1, self.chosen)
        styled = (Text.assemble(*line, no_wrap=True, end="") for line in lines)
        self.query_one("#run", Static).update(Text("\n").join(styled))
