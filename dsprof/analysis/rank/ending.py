"""How the record of one rank ended, and the last collectives of each group in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from sys import intern
from typing import NamedTuple

import numpy as np

from dsprof.analysis.ending import Ending, LastCall, PairCall, Symptoms, Told
from dsprof.analysis.group_calls import Call, RankFlight
from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.rank.last_moments import to_the_end
from dsprof.analysis.rank.record_columns import span_columns, step_columns
from dsprof.analysis.rank.remembered import remembered
from dsprof.analysis.rank.sampling import share_of
from dsprof.analysis.summary import RankClock
from dsprof.environment.processes import GONE
from dsprof.trace.collectives import POINT_TO_POINT, family, is_even
from dsprof.trace.columns import BoolArray
from dsprof.trace.dumps.faulthandler_text import threads_of
from dsprof.trace.dumps.hang_dump import HangDump, ThreadStack, connections, store_call
from dsprof.trace.dumps.py_spy import MAIN, native_calls
from dsprof.trace.rank_trace import Collectives, RankTrace
from dsprof.trace.rolling.parts import TAILS
from dsprof.trace.schema import EXIT, INTERRUPTED, OF_PLUGIN, Heartbeat
from dsprof.trace.sharing import shared

ENDED_CALLS = 1 << 13
"""All ranks together compare the last collectives of a group that have ended, about this many."""
_LEAST_ENDED, _MOST_ENDED = 2, 8  # of a group on each rank

OPEN_CALLS = 1 << 16
"""All ranks together keep the last collectives of a group that are open, about this many."""
_LEAST_OPEN_CALLS = 16  # of a group on each rank


def ending_of(trace: RankTrace, clock: RankClock) -> Ending:
    """Read the end of one rank; where it was killed, its live state adds the last calls."""
    return _Reading(to_the_end(trace), clock).ending()


class _Reading:
    """The end of one rank, by its columns."""

    def __init__(self, trace: RankTrace, clock: RankClock) -> None:
        self.trace, self.clock, self.rows = trace, clock, trace.collectives
        self.alive_ns = last_ns(trace)
        self.is_on_device = trace.header.device != "cpu"
        self.most_open = share_of(trace, OPEN_CALLS, _LEAST_OPEN_CALLS, OPEN_CALLS)
        self.most_ended = share_of(trace, ENDED_CALLS, _LEAST_ENDED, _MOST_ENDED)
        rows = trace.collectives
        self.is_pair = rows.of_families(POINT_TO_POINT) & rows.on_wire
        self._pair_seq = rows.seq[self.is_pair].astype(np.int64)
        self.is_collective = ~self.is_pair & rows.on_wire & ~rows.captured
        self.is_cut = _is_cut(trace)
        # Ctrl-C ends calls that are in order, too: how long they took shows which could not end.
        has_lost = trace.trailer is not None and bool(trace.trailer.lost)
        self.is_failed = _is_failed(rows) | (self.is_cut & has_lost)
        is_doubtful = _is_doubtful(rows, self.is_failed & self.is_collective)
        self.is_ended = _is_ended(trace) & ~self.is_cut & ~is_doubtful

    def ending(self) -> Ending:
        trace = self.trace
        last = self._last(np.flatnonzero(self.is_collective))
        calls_after_steps, after_steps_ns = self._after_steps()
        return Ending(
            trailer=trace.trailer,
            world_size=trace.header.world_size,
            backend=trace.header.backend,
            step=_last_step(trace),
            alive_ns=self._on_run(self.alive_ns),
            heartbeat=self._heartbeat(),
            is_whole=_is_whole(trace),
            is_on_device=self.is_on_device,
            groups=dict(self._groups()),
            pairs_open=tuple(self._pairs_open()),
            pairs=shared(self._pair_counts()),
            last=shared(self._last_call(last)),
            last_frame=self._frame(last) if last is not None else "",
            bound_ns=self.clock.bound_ns,
            has_state=trace.state is not None,
            symptoms=shared(self._symptoms()),
            failed_ns=self._failed_ns(),
            host=trace.header.host,
            last_pair=next(iter(self._pairs(self._is_doubtful_pair())), None),
            calls_after_steps=calls_after_steps,
            after_steps_ns=after_steps_ns,
            told=self._told(),
            left_ns=self._on_run(left.at_ns) if (left := group_end(trace)) else None,
            has_ddp=bool(trace.layouts),
        )

    def _told(self) -> Told | None:
        last_ns = _recorded_ns(self.trace)
        said = [note for note in self.trace.notes if note.time_ns > last_ns]
        told = (Told(n.text, n.hang_ranks) for n in reversed(said) if n.hang_ranks is not None)
        return next(told, None)

    def _after_steps(self) -> tuple[int, int]:
        """Return calls after the last step, and how long they went on; 0: unknown."""
        trace, rows, ends = self.trace, self.rows, step_columns(self.trace).end_ns
        has_exited = trace.trailer is not None and trace.trailer.reason == EXIT
        if not has_exited or not len(ends) or not _is_whole(trace) or _has_window(trace):
            return 0, 0
        last_ns = int(ends.max())
        later = rows.on_wire & (rows.issue_ns > last_ns) & ~rows.is_background
        if not later.any():
            return 0, 0
        columns = rows.return_ns, rows.done_ns, rows.waited_ns
        until_ns = max(int(column[later].max()) for column in columns)
        return int(np.count_nonzero(later)), max(until_ns - last_ns, 0)

    def _failed_ns(self) -> int | None:
        failed_ns = _exception_ns(self.trace)
        return self._on_run(failed_ns) if failed_ns else None

    def _heartbeat(self) -> Heartbeat | None:
        beats = self.trace.heartbeats
        return beats[-1] if beats and beats[-1].time_ns >= _recorded_ns(self.trace) else None

    def _symptoms(self) -> Symptoms:
        dump = self.trace.hang_dump
        if dump is None:
            return self._starved()
        trains = dump.threads[0] if dump.threads else ThreadStack("", ())
        return Symptoms(
            stack=trains.frames,
            native=native_calls(dump.native_stacks) if trains.name == MAIN else (),
            state=dump.process.state,
            waits_in=dump.process.waits_in,
            holds_interpreter=dump.holds_interpreter,
            # Of a living process they were others in its cgroup.
            oom_kills=(dump.process.oom_kills or 0) * (dump.process.state == GONE),
            at_ns=self._on_run(dump.noticed_ns - self.trace.header.started_monotonic_ns),
            connections=connections(dump.process),
            store_call=store_call(dump.threads) if self._ended_in(dump) else "",
            lost_store=dump.lost_store if self._ended_in(dump) else "",
        )

    def _ended_in(self, dump: HangDump) -> bool:
        """Say whether nothing went on after a dump."""
        noticed_ns = dump.noticed_ns - self.trace.header.started_monotonic_ns
        return bool(_recorded_ns(self.trace) <= noticed_ns)

    def _starved(self) -> Symptoms:
        """Say where a call held the interpreter lock, if the live state ends so."""
        state = self.trace.state
        if state is None or not state.stacks_ns:
            return Symptoms()
        threads = threads_of(state.stacks)
        return Symptoms(
            stack=threads[0].frames if threads else (),
            holds_interpreter=True,
            at_ns=self._on_run(state.stacks_ns - self.trace.header.started_monotonic_ns),
        )

    def _groups(self) -> Iterable[tuple[str, RankFlight]]:
        rows, trace, counted = self.rows, self.trace, _counted(self.trace)
        for number, group in trace.groups.items():
            mine = np.flatnonzero(self.is_collective & (rows.group == number))
            if not len(mine):
                continue
            mine = mine[np.argsort(rows.seq[mine], kind="stable")]
            ended = self.is_ended[mine]
            completed = mine[ended]
            passed = trace.state.passed.get(number, 0) if trace.state is not None else 0
            known = 0 if self.is_on_device else passed
            done = int(rows.seq[completed].max(initial=known))
            # What ended after it shows that the program went on.
            still = mine[~ended & (rows.seq[mine] > done)]
            unlisted = counted[number]
            calls = len(mine) + unlisted if unlisted else 0
            kept = (*completed[-self.most_ended :], *still[-self.most_open :])
            yield (
                group.key,
                RankFlight(
                    enqueued=max(int(rows.seq[mine[-1]]), calls, passed),
                    completed=done,
                    calls={int(rows.seq[row]): self._call(row) for row in kept},
                    p2p_in_flight=(),
                ),
            )

    def _call(self, row: int) -> Call:
        rows, issue_ns = self.rows, int(self.rows.issue_ns[row])
        end_ns = int(rows.done_ns[row] or rows.waited_ns[row])
        is_open = not self.is_ended[row]
        until_ns = self.alive_ns if is_open and not self.is_failed[row] else end_ns
        if self.is_cut[row]:
            until_ns = _exception_ns(self.trace)
        return Call(
            op=intern(family(rows.words[rows.op[row]])),
            elements=shared((int(rows.elements[row]),) * 2),
            dtype=intern(rows.words[rows.dtype[row]]),
            created_ns=self._on_run(issue_ns),
            is_in_flight=is_open,
            frame=self._frame(row),
            is_even=is_even(rows.words[rows.op[row]]),
            is_of_zero3=bool(rows.fetch[row]) and bool(self.trace.engines),
            step=int(rows.step[row]),
            nbytes=int(rows.nbytes[row]) if rows.tensors[row] else None,
            until_ns=self._on_run(until_ns),
            has_failed=bool(self.is_failed[row]),
            reduce_op=intern(rows.words[rows.reduce_op[row]]),
            peer=int(rows.peer[row]),
        )

    def _pairs_open(self) -> Iterable[PairCall]:
        rows, still = self.rows, self.is_pair & ~self.is_ended
        # The last one of a side may have ended by an error: then it calls itself complete.
        _, place, most = self._sides()
        still[self.is_pair] |= (rows.waits == 0)[self.is_pair] & (self._pair_seq == most[place])
        if not self.is_on_device:  # one that was neither waited for nor seen to end may be complete
            is_known = (rows.waits > 0) | (rows.done_ns > 0) | self._is_shown()
            still &= (rows.is_open & self._is_awaited()) | is_known
        return self._pairs(still)

    def _pairs(self, chosen: BoolArray) -> Iterable[PairCall]:
        rows, keys = self.rows, {n: group.key for n, group in self.trace.groups.items()}
        for row in np.flatnonzero(chosen & (rows.peer >= 0))[-self.most_open :]:
            if (key := keys.get(int(rows.group[row]))) is not None:
                yield PairCall(key, int(rows.peer[row]), int(rows.seq[row]), self._call(row))

    def _is_awaited(self) -> BoolArray:
        """Say which sends and receives in flight a killed rank may have waited for.

        Gloo calls none complete before a wait, so a line does not tell: the state of the rank does,
        and the dump of its watchdog.
        """
        if self.trace.trailer is not None or self.trace.state is not None:
            return np.ones(len(self.rows), np.bool_)  # what the state does not show is not open
        return self._is_shown()

    def _is_shown(self) -> BoolArray:
        """Say which rows the dump of the watchdog shows in flight, if nothing went on after it."""
        dump = self.trace.hang_dump
        shown = dump.state.in_flight if dump and dump.state and self._ended_in(dump) else []
        return np.isin(self.rows.id, [call.id for call in shown])

    def _is_doubtful_pair(self) -> BoolArray:
        """Say which send or receive is the last of all calls, and perhaps waited for."""
        rows = self.rows
        is_last = rows.issue_ns == rows.issue_ns.max(initial=0)
        is_open = self.is_pair & rows.is_open & ~self._is_awaited()
        return np.asarray(is_open & is_last & (not self.is_on_device), np.bool_)

    def _pair_counts(self) -> dict[tuple[str, str, int], int]:
        rows, keys = self.rows, {n: group.key for n, group in self.trace.groups.items()}
        sides, _, most = self._sides()
        return {
            (keys.get(group, ""), family(rows.words[op]), peer): count
            for (group, op, peer), count in zip(sides.tolist(), most.tolist(), strict=True)
        }

    def _sides(self) -> tuple[Array, Array, Array]:
        """Return (group, operation, peer) of sends and receives, whose each is, and how many."""
        rows = self.rows
        columns = np.stack([rows.group, rows.op, rows.peer], axis=1)[self.is_pair]
        sides, place = np.unique(columns.astype(np.int64), axis=0, return_inverse=True)
        most = np.zeros(len(sides), np.int64)
        np.maximum.at(most, place.ravel(), self._pair_seq)
        return sides, place.ravel(), most

    def _last(self, candidates: Array) -> int | None:
        """Return the row that ended last; the one called last where no end was seen."""
        rows = self.rows
        ended = candidates[self.is_ended[candidates]]
        if len(ended):
            done_ns = rows.done_ns[ended]
            return int(ended[np.flatnonzero(done_ns == done_ns.max())[-1]])
        return int(candidates[np.argmax(rows.issue_ns[candidates])]) if len(candidates) else None

    def _last_call(self, row: int | None) -> LastCall | None:
        if row is None:
            return None
        rows, group = self.rows, self.trace.groups.get(int(self.rows.group[row]))
        return LastCall(
            op=rows.words[rows.op[row]],
            number=int(rows.seq[row]),
            group=group.label if group else "",
            step=int(rows.step[row]),
            is_completed=bool(self.is_ended[row]),
        )

    def _frame(self, row: int) -> str:
        site = self.trace.sites.get(int(self.rows.site[row]))
        return intern(f"{site.file}:{site.line} {site.function}".rstrip()) if site else ""

    def _on_run(self, time_ns: int) -> int:
        return int(self.clock.on_run(np.array([time_ns]))[0])


def _is_ended(trace: RankTrace) -> BoolArray:
    """Say which rows are known to be complete.

    Of those on a device it is known where a stream has passed them, and what was called before.
    """
    rows = trace.collectives
    passed = np.isin(rows.id, [stall.collective for stall in trace.stalls])
    for number in np.unique(rows.group[passed]):
        mine = rows.group == number
        passed |= mine & (rows.seq <= rows.seq[mine & passed].max())
    return np.asarray((rows.done_ns > 0) | passed, np.bool_)


def _is_failed(rows: Collectives) -> BoolArray:
    """Say which rows a wait on the host gave up: it returned, and they were not complete."""
    seen_pending = (rows.pending_ns > 0) & (rows.waits > 0)
    return np.asarray(seen_pending & (rows.done_ns == 0) & ~rows.is_open, np.bool_)


def _is_cut(trace: RankTrace) -> BoolArray:
    """Say which rows were in flight when an exception said that others are lost, or at Ctrl-C.

    Nothing of Python waits for those of DDP, or goes on after Ctrl-C; the error that ends them lets
    them call themselves completed, which is seen after the exception.
    """
    rows, failed_ns, trailer = trace.collectives, _exception_ns(trace), trace.trailer
    is_cut = trailer is not None and (bool(trailer.lost) or trailer.reason == INTERRUPTED)
    if not is_cut or trace.header.device != "cpu":
        return np.zeros(len(rows), np.bool_)
    was_pending = (rows.waits == 0) & (rows.pending_ns > 0) & (rows.pending_ns < failed_ns)
    return np.asarray(was_pending & (rows.done_ns >= failed_ns), np.bool_)


def _exception_ns(trace: RankTrace) -> int:
    """Return when an exception ended a rank, 0 where none did or its time is unknown."""
    return max(trace.trailer.exception_ns, 0) if trace.trailer is not None else 0


class Left(NamedTuple):
    """The end of the default process group, of a rank that did not close its record."""

    at_ns: int
    missing_ns: int  # how much of the record before it may be missing


def group_end(trace: RankTrace) -> Left | None:
    """Return when a killed rank had left its process group in order; None: it had not.

    A framework destroys the group of a program that has failed, too: perhaps its wait had failed,
    or it was still in a collective. What went on after that was killed later.
    """
    state, start_ns = trace.state, trace.header.started_monotonic_ns
    written_ns = trace.group_ends[-1].time_ns if trace.group_ends else 0
    kept_ns = state.left_ns - start_ns if state is not None and state.left_ns else 0
    at_ns = max(written_ns, kept_ns)
    if trace.trailer is not None or at_ns <= 0:
        return None
    rows = to_the_end(trace).collectives
    is_awaited = rows.is_open & rows.on_wire & ~rows.of_families(POINT_TO_POINT)
    begun = (rows.issue_ns, span_columns(trace).start_ns, step_columns(trace).end_ns)
    went_on = any((column > at_ns).any() for column in begun)
    is_within = bool(is_awaited.any()) and trace.header.device == "cpu"
    if went_on or is_within or _is_failed(rows).any():
        return None
    return Left(at_ns, 0 if written_ns == at_ns else max(at_ns - last_ns(trace), 0))


def _last_step(trace: RankTrace) -> int:
    """Return the last step that ended; the live state tells a later one, by itself or its calls."""
    ended = max((step.step for step in trace.steps), default=-1)
    if trace.state is None:
        return ended
    return max(ended, trace.state.step - 1, int(trace.collectives.step.max(initial=-1)) - 1)


def _is_doubtful(rows: Collectives, is_failed: BoolArray) -> BoolArray:
    """Say which rows failed, or were in flight in the same group when one before them did.

    A Work that an error ends, because a peer is gone, calls itself completed.
    """
    found = is_failed.copy()
    for number in np.unique(rows.group[is_failed]):
        mine = rows.group == number
        first = np.flatnonzero(mine & is_failed)[0]
        is_later = (rows.seq > rows.seq[first]) & (rows.issue_ns < rows.waited_ns[first])
        found |= mine & is_later
    return np.asarray(found, np.bool_)


def _is_whole(trace: RankTrace) -> bool:
    trailer = trace.trailer
    if trace.broken_lines > (trailer is None):  # the last line of a killed rank may be cut
        return False
    if not {*TAILS}.isdisjoint(trace.lost_parts):
        return False
    if trailer is not None:
        failed = [name for name in trailer.failed_hooks if not name.startswith(OF_PLUGIN)]
        is_lossless = not (trailer.dropped or failed)
        return trailer.reason in (EXIT, INTERRUPTED) and is_lossless
    if trace.state is not None:
        return True
    return not (trace.counters or _has_window(trace))


def _has_window(trace: RankTrace) -> bool:
    """Say whether only some steps were to be recorded in detail."""
    config = trace.header.config
    is_begun = bool(config.get("start_step")) or config.get("steps") is not None
    return is_begun or config.get("every", 1) != 1


def _counted(trace: RankTrace) -> Counter[int]:
    """Count the collectives of each group that are only in counters."""
    counts: Counter[int] = Counter()
    for row in (row for counter in trace.counters for row in counter.rows):
        if row.on_wire and family(row.op) not in POINT_TO_POINT:
            counts[row.group] += row.calls
    return counts


def last_ns(trace: RankTrace) -> int:
    """Return the latest moment in the file: by then the rank was alive."""
    looks = [sample.time_ns for sample in trace.memory]
    beats = [beat.time_ns for beat in trace.heartbeats]
    return max([_recorded_ns(trace), *looks, *beats])


@remembered
def _recorded_ns(trace: RankTrace) -> int:
    """Return the latest moment of a collective, phase or step."""
    rows = trace.collectives
    columns = (
        *(rows.issue_ns, rows.return_ns, rows.pending_ns, rows.done_ns, rows.waited_ns),
        *(step_columns(trace).end_ns, span_columns(trace).end_ns),
    )
    return max((int(column.max()) for column in columns if len(column)), default=0)
