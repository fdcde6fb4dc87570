"""The pages of one run: its report with any step in detail, and the list of its steps.

An address holds numbers only. What is read is the run that was given, file by file as it was found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from threading import Lock

import msgspec

from dsprof.analysis.summarise import align_run, draw_steps
from dsprof.analysis.summary import RankClock
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.timelines import Timeline
from dsprof.diagnosis.timelines import timeline
from dsprof.errors import TraceError
from dsprof.reports import render
from dsprof.reports.base import Link
from dsprof.reports.html.steps_page import steps_page
from dsprof.trace.rolling.parts import is_rolling, parts_of
from dsprof.trace.run import RunFiles

_RANKS = 16
"""A page shows this many ranks if the report draws none. Each rank has a page of its own, too."""

_LINKED_RANKS = 256
_STEPS = 500
"""A page of the list shows this many steps."""


def check_confined(run: RunFiles, roots: Sequence[Path]) -> None:
    """Refuse a run of which a file is elsewhere: a link must not show what else this user can read.

    Raises:
        TraceError: a file is not in the folders of `roots`.
    """
    folders = [Path(os.path.realpath(root if root.is_dir() else root.parent)) for root in roots]
    rolling = (path for path, head in zip(run.files, run.headers, strict=True) if is_rolling(head))
    for path in chain(run.files, *run.beside.values(), *map(parts_of, rolling)):
        real = Path(os.path.realpath(path))
        if not any(real.is_relative_to(folder) for folder in folders):
            raise TraceError(f"{path}: a link to {real}, which is in another folder; name that one")


class Site:
    """Makes a page when it is asked for; one at a time, because each may read whole traces."""

    def __init__(self, run: RunFiles, diagnosis: Diagnosis, *, was_growing: bool = False) -> None:
        """Show a run; `was_growing` says whether it went on before it was judged."""
        self._run, self._diagnosis = run, diagnosis
        self.is_growing = was_growing or diagnosis.run.is_running
        """Whether the run may hold more than the pages: its end, too, if it came meanwhile."""
        self.failure = ""  # why a newer judgement failed
        self._ranks = sorted(header.rank for header in run.headers)
        self._steps = [row.step for row in diagnosis.steps.rows if row.step is not None]
        self._lock = Lock()
        self._drawn = lru_cache(maxsize=32)(self._draw)

    def page(self, path: str) -> bytes | None:
        """Return the page at a path; None where there is none.

        Raises:
            DsprofError: a trace cannot be read any more.
        """
        for pattern, make in _PAGES.items():
            if found := re.fullmatch(pattern, path, re.ASCII):
                with self._lock:
                    return make(self, *map(int, found.groups()))
        return None

    def _report(self) -> bytes:
        links = [Link("Every step", "/steps")] if self._steps else []
        return render(self._with_failure(), "html", links=links)

    def _with_failure(self) -> Diagnosis:
        if not self.failure:
            return self._diagnosis
        quality = self._diagnosis.quality
        limits = [f"The page is out of date: {self.failure}", *quality.limits]
        quality = msgspec.structs.replace(quality, limits=limits)
        return msgspec.structs.replace(self._diagnosis, quality=quality)

    def _list(self, page: int = 0) -> bytes | None:
        rows = self._diagnosis.steps.rows[page * _STEPS : (page + 1) * _STEPS]
        if not rows and page:
            return None
        firsts = enumerate(self._steps[::_STEPS])
        pages = [Link(f"from step {first}", f"/steps/page/{n}") for n, first in firsts]
        return steps_page(self._diagnosis, rows, [Link("Report", "/"), *pages[1:]])

    def _all_ranks(self, step: int) -> bytes | None:
        drawn = {bar.rank for one in self._diagnosis.timelines for bar in one.bars}
        return self._detail(step, sorted(drawn & {*self._ranks}) or self._ranks[:_RANKS])

    def _detail(self, step: int, ranks: Sequence[int]) -> bytes | None:
        """Return the report with this step of some ranks as its timeline."""
        if step not in self._steps or not {*ranks} <= {*self._ranks}:
            return None
        drawn = self._drawn(step, tuple(ranks))
        shown = msgspec.structs.replace(self._diagnosis, timelines=drawn, timeline_places=[])
        return render(shown, "html", links=list(self._links(step)))

    def _links(self, step: int) -> Iterator[Link]:
        yield Link("Every step", "/steps")
        place = self._steps.index(step)
        for other in self._steps[max(place - 1, 0) : place + 2]:
            if other != step:
                yield Link(f"step {other}", f"/steps/{other}#timeline")
        if len(self._ranks) > 1:
            yield Link("all ranks", f"/steps/{step}#timeline")
            for rank in self._ranks[:_LINKED_RANKS]:
                yield Link(f"rank {rank}", f"/steps/{step}/ranks/{rank}#timeline")

    @cached_property
    def _clocks(self) -> dict[int, RankClock]:
        return align_run(self._run).clocks

    def _draw(self, step: int, ranks: tuple[int, ...]) -> list[Timeline]:
        drawn = draw_steps(self._run, self._clocks, {rank: {step} for rank in ranks})
        details = dict(sorted(drawn.get(step, {}).items()))
        return [timeline(step, "chosen", details)] if details else []


_PAGES: Mapping[str, Callable[..., bytes | None]] = {
    r"/": Site._report,
    r"/steps": Site._list,
    r"/steps/page/(\d{1,9})": Site._list,
    r"/steps/(\d{1,12})": Site._all_ranks,
    r"/steps/(\d{1,12})/ranks/(\d{1,9})": lambda site, step, rank: site._detail(step, [rank]),
}
