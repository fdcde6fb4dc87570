"""Looks at a run again and again, and says what it does now."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, median
from threading import Event
from time import monotonic

from dsprof.analysis.aggregates.endings import patience_ns
from dsprof.diagnosis.parts.steps import StepParts
from dsprof.errors import TraceError
from dsprof.files.redaction import map_text, redact_text
from dsprof.live.following import FollowedRank
from dsprof.live.judging import Judge
from dsprof.live.now import InFlight, RankNow, RunNow, State, Strip
from dsprof.live.pacing import REST
from dsprof.live.recent import RecentSteps
from dsprof.live.totals import Totals
from dsprof.trace.device_counters import ALLOCATED, RESERVED, STUCK
from dsprof.trace.dumps.state_file import SILENT_S
from dsprof.trace.host_folders import HOSTS, host_folders
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import can_grow, find_run
from dsprof.trace.schema import Group, Step

_SHORTEST_REST_S = 1.0

SELDOM_S = 10.0
"""Between looks for programs, as often as Prometheus may ask: a look costs 10 ms."""

_LONG_AGO_S = 1e9
_STRIP_RANKS = 64
_MOST_ENDED = 4096


class NotGrowingError(TraceError):
    """A file that is not being recorded."""


class Watched:
    """A run that is being recorded into a folder.

    Each `look` reads what is new; `now` says what is known. Everything is bounded: by ranks, and by
    a number of recent steps.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Find the run.

        Raises:
            TraceError: there is none yet, or it cannot be read.
        """
        self._paths = paths
        self._seen: set[str] = set()
        self.ranks: dict[int, FollowedRank] = {}
        self.epoch = 1
        self.recent = RecentSteps()
        self.totals = Totals()
        self.judge = Judge(paths)
        self.ended: deque[Step] = deque(maxlen=_MOST_ENDED)
        """New steps of the first rank, for whoever takes them out."""
        self._last_ended = -1
        self._moved_at = monotonic()
        self._furthest: dict[int, int] = {}  # rank -> the last step that it ended
        self._find()

    @property
    def is_over(self) -> bool:
        """Whether every rank that has a trace has ended it, or is gone."""
        return all(rank.is_over or rank.is_gone for rank in self.ranks.values())

    @property
    def is_removed(self) -> bool:
        """Whether no rank of a run that goes on has its trace where it was."""
        return not (self.is_over or any(rank.path.exists() for rank in self.ranks.values()))

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read at once."""
        return any(rank.is_behind for rank in self.ranks.values())

    def look(self) -> None:
        """Read what is new."""
        if _names(self._paths) != self._seen:
            with suppress(TraceError):
                self._find()
        chunks = {followed: followed.look() for followed in self.ranks.values()}
        windows = [one.window() for one in chunks] if any(chunks.values()) else []
        for followed, found in chunks.items():
            labels = {number: group.label for number, group in followed.groups.items()}
            for chunk in found:
                self.totals.add(chunk, labels)
        self._take([window for window in windows if window is not None])
        if not self.is_behind:
            for number, rank in self.ranks.items():
                if rank.is_over or rank.is_gone:
                    self.totals.end(number, rank.header.host)
            self.judge.poll(is_over=self.is_over, is_stalled=self.is_stalled)

    def _take(self, windows: Sequence[RankTrace]) -> None:
        steps = self.recent.add(windows)
        self._note_ends(windows)
        for rank, number, found in steps:
            self.totals.add_step(rank, number, found, self.ranks[rank].header.host)
        taken = {rank: number for rank, number, _ in steps}  # each window begins with a known step
        if any(number > self._furthest.get(rank, -1) for rank, number in taken.items()):
            self._furthest |= taken
            self._moved_at = monotonic()

    def _note_ends(self, windows: Iterable[RankTrace]) -> None:
        first = min(self.ranks)
        for window in windows:
            if window.rank == first:
                self.ended += [one for one in window.steps if one.step > self._last_ended]
                self._last_ended = max(one.step for one in window.steps)

    @property
    def is_stalled(self) -> bool:
        """Whether no step has ended for much longer than steps take."""
        lengths = self.recent.lengths_ns
        waited_ns = (monotonic() - self._moved_at) * 1e9
        return not self.is_over and waited_ns > patience_ns(median(lengths) if lengths else 0)

    def now(self) -> RunNow:
        """Say what the run does now."""
        first = self.ranks[min(self.ranks)].header
        steps, lengths = sorted(self.recent.steps), self.recent.lengths_ns
        step_ns = _of_known(median, lengths)
        votes = self.recent.votes()
        straggler = self.recent.straggler(votes) if votes else None
        late_ns = dict(zip(votes.ranks, votes.median_ns.tolist(), strict=True)) if votes else {}
        ranks = [self._rank(number, late_ns.get(number)) for number in sorted(self.ranks)]
        is_moving = any(rank.state == "running" for rank in ranks)
        now = RunNow(
            run_key=first.run_key,
            started=_date(first.started_epoch_ns / 1e9),
            looked=_date(time.time()),
            world_size=first.world_size,
            is_over=self.is_over,
            ranks=ranks,
            strip=self._strip(steps, ranks, straggler),
            step=steps[-1] if steps else None,
            steps_per_s=1e9 / step_ns if step_ns and is_moving else None,
            step_ns=step_ns,
            trend=self.recent.trend(),
            parts=(parts := _parts(self.recent)),
            exposed_share=parts.exposed_comm_ns / parts.total_ns
            if parts and parts.exposed_comm_ns is not None and parts.total_ns
            else None,
            straggler=straggler,
            straggler_ns=None if votes is None or straggler is None else votes.typical_ns,
            stuck=self.judge.stuck,
            stuck_key=self.judge.stuck_key,
            findings=self.judge.standing.findings,
            judged_steps=self.judge.steps,
            judge_failure=self.judge.failure,
            epoch=self.epoch,
            waiting_rules=self.judge.standing.waiting,
            is_removed=self.is_removed,
        )
        return map_text(now, redact_text)  # type: ignore[no-any-return]

    def _find(self) -> None:
        names = _names(self._paths)
        run = find_run(self._paths)
        for path in run.files:
            if not can_grow(path):
                raise NotGrowingError(
                    f"{path}: packed or of another tool, so it does not grow; use dsprof report"
                )
        known = {rank.path: rank for rank in self.ranks.values()}
        if known.keys().isdisjoint(run.files):  # another run, or another epoch of it
            self.judge.close()
            self.recent, self.totals, self.judge = RecentSteps(), Totals(), Judge(self._paths)
            self._last_ended, self._furthest = -1, {}
            self._moved_at = monotonic()
        self.ranks = {
            header.rank: known.get(path) or FollowedRank(path, header, len(run.files))
            for path, header in zip(run.files, run.headers, strict=True)
        }
        self.epoch, self._seen = run.epoch, names

    def _rank(self, number: int, late_ns: int | None) -> RankNow:
        followed, steps = self.ranks[number], self.recent.of_rank(number)
        last = max((n for n, ranks in self.recent.steps.items() if number in ranks), default=None)
        state, flying = _state(followed)
        memory, device = followed.memory, followed.device
        return RankNow(
            rank=number,
            host=followed.header.host,
            state=state,
            step=last,
            silent_ns=None if followed.is_over else _bounded_ns(followed.life.silent_s),
            step_ns=_of_known(median, (one.total_ns for one in steps)),
            exposed_ns=_of_known(median, (one.exposed_ns for one in steps)),
            late_ns=late_ns,
            in_flight=flying,
            rss_bytes=memory.rss_bytes if memory else None,
            allocated_bytes=device.get(ALLOCATED),
            reserved_bytes=device.get(RESERVED),
            stuck_bytes=device.get(STUCK),
        )

    def _strip(
        self, steps: Sequence[int], found: Iterable[RankNow], straggler: int | None
    ) -> Strip:
        by_interest = sorted(found, key=lambda one: (not one.stands_out(straggler), one.rank))
        ranks = sorted(one.rank for one in by_interest[:_STRIP_RANKS])
        rows = [[self.recent.steps[step].get(rank) for step in steps] for rank in ranks]
        busy = [
            [-1 if one is None else one.total_ns - (one.exposed_ns or 0) for one in row]
            for row in rows
        ]
        total = [[-1 if one is None else one.total_ns for one in row] for row in rows]
        return Strip(ranks, list(steps), busy, total)


def _names(paths: Iterable[Path]) -> set[str]:
    """Return the names of the files under `paths`, as far as they can be listed."""
    found = set()
    for path in paths:
        found.add(str(path))
        for folder in (path, *host_folders([path / HOSTS])):
            with suppress(OSError), os.scandir(folder) as entries:
                found |= {entry.path for entry in entries}
    return found


def _state(followed: FollowedRank) -> tuple[State, InFlight | None]:
    """Say whether a rank shows life, and what it waits for: by its memory, or else by its file."""
    if followed.is_over:
        return ("crashed" if followed.exception else "ended"), None
    if (state := followed.state()) is not None:
        now_ns = time.monotonic_ns()
        flying = [
            InFlight(call.op, _label(state.groups, call.group), call.nbytes, now_ns - call.issue_ns)
            for call in state.in_flight[:1]
        ]
    else:
        now_ns = time.time_ns() - followed.header.started_epoch_ns
        flying = [
            InFlight(
                line.name,
                _label(followed.groups, line.args.group),
                line.args.nbytes,
                now_ns - line.args.issue_ns,
            )
            for line in followed.opened[:1]
        ]
    if followed.is_gone:
        return "gone", flying[0] if flying else None
    is_silent = followed.life.silent_s > SILENT_S
    return ("silent" if is_silent else "running"), flying[0] if flying else None


def _label(groups: Mapping[int, Group], number: int) -> str:
    return groups[number].label if number in groups else ""


def _parts(recent: RecentSteps) -> StepParts | None:
    """Return the mean over ranks of the recent steps after warm-up, added up."""
    rows = [[*recent.steps[number].values()] for number in recent.measured]
    if not rows:
        return None
    parts = {
        name: _sum([_of_known(fmean, (getattr(one, f"{name}_ns") for one in row)) for row in rows])
        for name in ("compute", "exposed", "copies", "idle")
    }
    total_ns = sum(round(fmean(one.total_ns for one in row)) for row in rows)
    return StepParts(
        step=None,
        compute_ns=parts["compute"],
        exposed_comm_ns=parts["exposed"],
        copies_ns=parts["copies"],
        idle_ns=parts["idle"],
        other_ns=total_ns - sum(part or 0 for part in parts.values()),
        total_ns=total_ns,
    )


def _of_known(
    average: Callable[[Sequence[int]], float], values: Iterable[int | None]
) -> int | None:
    known = [value for value in values if value is not None]
    return round(average(known)) if known else None


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _date(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, timezone.utc).isoformat(timespec="seconds")


def _bounded_ns(seconds: float) -> int | None:
    return round(max(seconds, 0) * 1e9) if seconds < _LONG_AGO_S else None


def repeat(
    watched: Watched,
    stopped: Event,
    show: Callable[[RunNow], object],
    shortest_rest_s: float = _SHORTEST_REST_S,
) -> None:
    """Look at the run and show it until `stopped`, with 4 % of a core at most once it is read."""
    try:
        while not stopped.is_set():
            began = time.thread_time()
            watched.look()
            if not watched.is_behind:
                show(watched.now())
                stopped.wait(max(REST * (time.thread_time() - began), shortest_rest_s))
    finally:
        watched.judge.close()
