"""Captures of one session, from trace to trace: their signal, their thread and their profiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsprof.config import Config
from dsprof.recording.capture.on_signal import NO_SIGNAL, CaptureSignal
from dsprof.recording.capture.thread import Capture
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.rolling.writer import RollingWriter
from dsprof.trace.schema import Header

if TYPE_CHECKING:
    from dsprof.recording.capture.profiler.window import ProfilerWindow


class Captures:
    """What a recording without end needs to keep steps on request."""

    def __init__(self, config: Config, recorder: Recorder) -> None:
        self._config, self._recorder = config, recorder
        self._signal: CaptureSignal | None = None
        self._profiler: ProfilerWindow | None = None
        self._thread: Capture | None = None

    def handle_signal(self) -> None:
        """Handle the signal of `capture_signal` from now on; one that came before is dropped.

        Raises:
            ValueError: this is not the main thread.
            RuntimeError: C code handles the signal.
        """
        name = self._config.capture_signal
        if name == NO_SIGNAL:
            return
        if self._signal is None or not self._signal.is_handled:
            self._signal = CaptureSignal(name)
        else:
            self._signal.take()

    def begin(
        self,
        header: Header,
        folder: Path,
        writer: RollingWriter,
        disclose: Callable[[Any], Any],
    ) -> None:
        """Follow requests of `dsprof capture`, and alarms, for a new trace."""
        recorder = self._recorder
        profiler = self._profiler_window() if self._config.capture_profiler else None
        if profiler is not None:
            profiler.begin(header, lambda: writer.path, disclose)
        try:
            self.handle_signal()
        except (ValueError, RuntimeError) as error:
            recorder.fail("capture_signal", error)
        self._thread = Capture(
            header,
            folder,
            writer,
            lambda: recorder.progress.scope.step,
            recorder.fail,
            self._signal,
            profiler,
        )
        self._thread.start()

    def end_trace(self) -> None:
        """Follow no more requests for the last trace; does not wait for the thread."""
        if self._thread is not None:
            self._thread.stop()

    def ends(self, *, is_exit: bool) -> dict[str, Callable[[], object]]:
        """Return what ends each part, by its name."""
        ends: dict[str, Callable[[], object]] = {"capture": self.end_trace}
        if self._signal is not None:
            ends["capture_signal"] = partial(self._signal.close, is_exit=is_exit)
        if self._profiler is not None:
            ends["capture_profiler"] = self._profiler.close
        return ends

    def abandon(self) -> None:
        """Do nothing any more, in a forked child."""
        if self._profiler is not None:
            self._profiler.abandon()

    def _profiler_window(self) -> ProfilerWindow | None:
        """Return the window of torch.profiler; None if torch cannot be used so."""
        from dsprof.recording.capture.profiler.window import ProfilerWindow

        if self._profiler is None:
            recorder = self._recorder
            try:
                self._profiler = ProfilerWindow(recorder.outbox.define, recorder.fail)
                recorder.progress.step_listeners.append(self._profiler.end_step)
            except Exception as error:  # noqa: BLE001 - training goes on without
                recorder.fail("capture_profiler", error)
        return self._profiler
