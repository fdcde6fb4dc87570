"""How the records of ranks ended, in words: why, and after which step and collective."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dsprof.analysis.ending import Ending, LastCall
from dsprof.analysis.hang.flight_recorders import by_value
from dsprof.findings.finding import Column, Table
from dsprof.findings.frames import shortened
from dsprof.findings.wording import named
from dsprof.trace.schema import EXIT, INTERRUPTED
from dsprof.trace.selection import Selection

_ROWS = 32
_KINDS = 4


def known_ends(
    endings: Mapping[int, Ending], ranks: Iterable[int], selection: Selection
) -> Mapping[int, Ending]:
    """Return the endings; none where not all of these ranks were read up to their end."""
    steps = (endings[rank].step for rank in ranks if rank in endings)
    return endings if all(map(selection.has_end_of, steps)) else {}


def evidence_of(ends: Mapping[int, Ending]) -> tuple[Table, ...]:
    """Return the evidence of a finding on ranks that ended: none, where no end is known."""
    return (last_completed(ends),) if ends else ()


def last_completed(endings: Mapping[int, Ending], ranks: Iterable[int] = ()) -> Table:
    """Say how the record of each rank ended, and after which collective; by default of all."""
    chosen = ranks or sorted(endings)
    shown = [(rank, endings[rank]) for rank in chosen if rank in endings][:_ROWS]
    latest_ns = max((ending.alive_ns for _, ending in shown), default=0)
    beats = any(ending.heartbeat for _, ending in shown)
    columns = (Column("in flight", "count"), Column("longest in flight", "ns")) if beats else ()
    return Table(
        columns=(
            Column("rank"),
            Column("ended by"),
            Column("last completed collective"),
            Column("step", "count"),
            Column("called from"),
            Column("ends before the last rank by", "ns"),
            *columns,
        ),
        rows=tuple(
            (
                rank,
                how(ending),
                called(ending.last),
                ending.last.step if ending.last and ending.last.step >= 0 else None,
                ending.last_frame,
                latest_ns - ending.alive_ns,
                *_in_flight(ending)[: len(columns)],
            )
            for rank, ending in shown
        ),
        caption="How the record of each rank ended",
    )


def _in_flight(ending: Ending) -> tuple[int | None, int | None]:
    """Say what the last heartbeat tells: how many collectives, and since when the oldest."""
    beat = ending.heartbeat
    return (None, None) if beat is None else (beat.in_flight, beat.oldest_ns or None)


def how(ending: Ending) -> str:
    """Say how the record of a rank ended."""
    if ending.left_ns is not None:
        return "destroy_process_group(); the record was not closed"
    if ending.trailer is None:
        return "breaks off: killed, crashed, or still running"
    if ending.trailer.exception:
        return ending.trailer.exception
    reason = ending.trailer.reason
    return {EXIT: "end of the process", INTERRUPTED: "Ctrl-C"}.get(reason, reason)


def raised_at(ranks: Iterable[int], ends: Mapping[int, Ending]) -> str:
    """Name the line at which all ranks raised: " at job/train.py:9"; "" if that is unknown."""
    trailers = [ends[rank].trailer for rank in ranks if rank in ends]
    places = {trailer.raised_at for trailer in trailers if trailer is not None}
    if len(places) != 1 or not (place := places.pop()):
        return ""
    return f" at {shortened(place).rpartition(' ')[0]}"


def called(last: LastCall | None) -> str:
    """Name the last collective of a rank."""
    if last is None:
        return "none recorded"
    unseen = "" if last.is_completed else " (called; completion not recorded)"
    return f"{last.op} {last.number:,} of {last.group or 'an unknown group'}{unseen}"


def completed_last(endings: Mapping[int, Ending], ranks: Iterable[int]) -> str:
    """Say in a sentence which collective each of the ranks completed last."""
    last = {rank: called(endings[rank].last) for rank in ranks if rank in endings}
    return f" Last completed collective: {on_ranks(last)}." if last else ""


def on_ranks(values: Mapping[int, str]) -> str:
    """Say what is on which ranks, the commonest first."""
    groups = by_value(values)
    rest = f"; {len(groups) - _KINDS:,} more" if len(groups) > _KINDS else ""
    return "; ".join(f"{value} on {named(ranks)}" for value, ranks in groups[:_KINDS]) + rest


def after_step(endings: Mapping[int, Ending], ranks: Iterable[int]) -> str:
    """Name the last steps that the ranks ended: " after step 7"; "" where there is none."""
    steps = [endings[rank].step for rank in ranks if rank in endings]
    first, last = min(steps, default=-1), max(steps, default=-1)
    if last < 0:
        return ""
    if first < 0:
        return f" after step {last:,} at the latest"
    return f" after step {last:,}" if first == last else f" after steps {first:,} to {last:,}"
