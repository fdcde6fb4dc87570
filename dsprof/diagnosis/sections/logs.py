"""The sections of what logs say: facts that libraries state, and figures that others measured."""

from __future__ import annotations

from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.collectives import busbw_factor
from dsprof.analysis.rank_sets import ranks_of
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts.logs import LoggedCallRow, LoggedFact, LogMarkRow
from dsprof.trace.rank_log import OF_JOB, CallKind, LoggedCalls

_MOST_MARKS = 500
_LOGGED_BY = "DeepSpeed's comms_logger"


def logged_facts(summary: RunSummary) -> list[LoggedFact]:
    """List what the logs state, each with the ranks that state it."""
    return [
        LoggedFact(
            kind=kind,
            value=value,
            ranks=[] if kind in OF_JOB else list(ranks_of(ranks)),
            lines=lines,
        )
        for (kind, value), (ranks, lines) in sorted(summary[Logs].facts().items())
    ]


def logged_calls(summary: RunSummary) -> list[LoggedCallRow]:
    """List the calls that DeepSpeed's comms_logger told, those that took longest first."""
    logs = summary[Logs]
    rows = sorted(logs.calls().items(), key=lambda item: (-(item[1].total_ns or 0), item[0]))
    note = next((log.comms_logger for log in logs.ranks.values() if log.comms_logger), "")
    return [_call_row(kind, calls, note) for kind, calls in rows]


def _call_row(kind: CallKind, calls: LoggedCalls, wrong: str) -> LoggedCallRow:
    op, caller, nbytes = kind
    total_ns, size = calls.total_ns, _size_bytes(kind, calls)
    algbw = size * calls.calls / total_ns * 1e9 if total_ns and size else None
    factor = busbw_factor(op, calls.world_size)
    return LoggedCallRow(
        source=_LOGGED_BY,
        op=op,
        caller=caller,
        message_bytes=nbytes,
        calls=calls.calls,
        total_ns=total_ns,
        mean_ns=total_ns / calls.calls if total_ns is not None and calls.calls else None,
        algbw=algbw,
        busbw=algbw * factor if algbw and factor else None,
        world_size=calls.world_size or None,
        straggler_ns=calls.straggler_ns,
        note=_note(calls, wrong),
    )


def _size_bytes(kind: CallKind, calls: LoggedCalls) -> int | None:
    """Return the size of a collective as nccl-tests counts it, None where it is not known.

    DeepSpeed logs the first tensor: of an all-gather that is one rank's part, but in its early
    releases, whose bandwidths show that they do not count ranks, are unknown.
    """
    op, _, nbytes = kind
    if not op.startswith("all_gather"):
        return nbytes
    return nbytes * calls.world_size if calls.factor == calls.world_size > 0 else None


def _note(calls: LoggedCalls, wrong: str) -> str:
    if not wrong:
        return ""
    return f"{wrong}; " + (
        "times not usable" if calls.total_ns is None else "times recovered from the sums"
    )


def log_marks(summary: RunSummary) -> list[LogMarkRow]:
    """List where warnings and errors are; of several logs the order is not known."""
    run = summary[Run].ranks.values()
    if len({one.path for one in run}) > 1 or any(one.beside for one in run):
        return []
    marks = [
        LogMarkRow(
            rank=None if log.is_stray(mark) else rank,
            place=mark.at_bytes / max(log.nbytes, 1),
            is_error=mark.is_error,
            text=mark.text,
        )
        for rank, log in sorted(summary[Logs].ranks.items())
        for mark in log.marks
    ]
    return sorted(marks, key=lambda mark: mark.place)[:_MOST_MARKS]


SECTIONS = {"logged": logged_facts, "log_marks": log_marks, "logged_calls": logged_calls}
