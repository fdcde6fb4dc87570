"""The whole of a rolling recording: sums over time, and which steps are kept in detail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dsprof.analysis.aggregates.history import History, Kept, Span
from dsprof.analysis.aggregates.rank_times import RankTimes
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.time_spans import TimeSpan, TimeSpans
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.history_map import history_map
from dsprof.diagnosis.parts import filled
from dsprof.diagnosis.parts import history as parts
from dsprof.findings.wording import duration

_MOST_KEPT = 100


def history(summary: RunSummary) -> parts.History:
    """Show the whole recording; empty where it is none without end."""
    found = summary[History]
    length_s, spans = found.finest
    if not spans:
        return _of_chosen(summary)
    telling = {step: one for step, one in found.kept.items() if one.why not in ("first", "sample")}
    ended = {rank: int(one.last_step[-1]) for rank, one in summary[RankTimes].ranks.items()}
    kept = _windows(_kept(step, telling[step], ended) for step in sorted(telling))
    kept.sort(key=lambda one: (not one.cause, -(one.times or 0), one.step))  # captured, slowest...
    return parts.History(
        length_s=length_s,
        spans=[_span(begin_s, span) for begin_s, span in spans.items()],
        steps=found.steps,
        lost_steps=found.lost,
        detailed_steps=found.steps - found.left_out,
        newest_from=summary[Steps].newest_from,
        kept=kept[:_MOST_KEPT],
        kept_left_out=max(len(kept) - _MOST_KEPT, 0),
        map=history_map(summary),
    )


def history_note(found: parts.History, steps: Steps, *, has_times: bool) -> str:
    """Say what of a rolling recording was left out; "" where nothing was.

    `has_times`: sums over time of ranks without steps are there.
    """
    if found.newest_ns:
        kept = "sums over time of all that was recorded" if has_times else "no sums"
        return (
            f"The run has no steps, so only records of the last {duration(found.newest_ns)} are "
            f"kept, and {kept}. Call dsprof.step() in its loop, or raise budget_mb"
        )
    if not found.newest_from:
        return ""
    kept = f"Details of {found.detailed_steps:,} of"
    described = "Findings and figures per step describe"
    if found.spans and not steps.measured:
        return f"{kept} {found.steps:,} steps are kept. Sums over time are of all recorded steps"
    newest = f"the newest steps, from step {found.newest_from:,} on"
    if found.spans:
        return (
            f"{kept} {found.steps:,} steps are kept, and sums of all recorded steps. {described} "
            f"{newest}; use --steps to analyse other kept steps"
        )
    kept += f" the {found.steps:,} selected steps are kept"
    if steps.measured[-1] >= found.newest_from:
        return f"{kept}. {described} {newest}; to analyse earlier steps, select only those"
    chosen = f"{len(steps.measured):,} evenly spaced ones" if steps.even else "these"
    if len(steps.measured) == 1:
        chosen = f"step {steps.measured[0]:,}"
    return (
        f"{kept}; slow steps are kept on purpose. {described} {chosen}; to analyse a slow step, "
        "select only that one"
    )


def time_spans(summary: RunSummary) -> parts.TimeSpans:
    """Show ranks without steps over the whole recording."""
    found = summary[TimeSpans]
    length_s, spans = found.finest
    ops = [
        parts.TimeOp(op=op, calls=sums.calls, bytes=sums.nbytes, blocked_ns=sums.blocked_ns)
        for op, sums in found.ops.items()
    ]
    return parts.TimeSpans(
        length_s=length_s,
        ranks=found.ranks,
        spans=[_time_span(begin_s, span) for begin_s, span in spans.items()],
        ops=sorted(ops, key=lambda one: (-one.bytes, -one.calls, one.op)),
    )


def _time_span(begin_s: int, span: TimeSpan) -> parts.TimeSpan:
    return parts.TimeSpan(
        begin_s=begin_s,
        ranks=span.ranks,
        recorded_ns=span.recorded_ns // span.ranks,
        waited_ns=span.waited_ns // span.ranks,
        calls=span.calls // span.ranks,
        bytes=span.nbytes // span.ranks,
        rss_bytes=span.rss_bytes if span.rss_bytes >= 0 else None,
    )


def _of_chosen(summary: RunSummary) -> parts.History:
    """Count selected steps of which a rolling recording has left some out; else empty."""
    steps, chosen = summary[Steps], summary[Run].selection.steps
    newest_ns = filter(None, (facts.newest_ns for facts in summary[Run].ranks.values()))
    if shortest_ns := min(newest_ns, default=0):
        return parts.History(newest_ns=shortest_ns)
    if chosen is None or not steps.numbers or chosen.start >= steps.newest_from:
        return parts.History()
    end = max(steps.numbers[-1] + 1, min(chosen.stop, steps.newest_from))
    count = end - chosen.start
    kept = min((steps.ranks[rank].recorded for rank in steps.throughout.ranks), default=0)
    if kept >= count and steps.measured[-1] < steps.newest_from:
        return parts.History()
    return parts.History(steps=count, detailed_steps=kept, newest_from=steps.newest_from)


def _kept(step: int, one: Kept, ended: Mapping[int, int]) -> parts.KeptStep:
    """Show a kept step; of a captured one the ranks that learnt of it too late to keep it.

    `ended` is the last step of each rank: those that ended before are not late.
    """
    late: list[int] = []
    if one.is_captured and one.ranks < len(ended):
        late = sorted(rank for rank in ended.keys() - one.named if ended[rank] >= step)
    return filled(parts.KeptStep, one, step=step, times=one.times or None, late_ranks=late)


def _windows(kept: Iterable[parts.KeptStep]) -> list[parts.KeptStep]:
    """Join steps that were captured together, on the same ranks."""
    found: list[parts.KeptStep] = []
    for one in kept:
        last = found[-1] if found else None
        if last is not None and one.cause and _joins(last, one):
            times = max(last.times or 0, one.times or 0) or None
            found[-1] = msgspec.structs.replace(last, steps=last.steps + 1, times=times)
        else:
            found.append(one)
    return found


def _joins(last: parts.KeptStep, one: parts.KeptStep) -> bool:
    same = (last.cause, last.ranks, last.late_ranks) == (one.cause, one.ranks, one.late_ranks)
    return same and last.step + last.steps == one.step


def _span(begin_s: int, span: Span) -> parts.HistorySpan:
    slowest_ns, negative_rank, step = span.slowest
    count = max(span.rank_steps, 1)
    mean_ns = span.total_ns // count
    return filled(
        parts.HistorySpan,
        span,
        begin_s=begin_s,
        mean_ns=mean_ns,
        slowest_ns=slowest_ns,
        slowest_step=step,
        slowest_rank=-negative_rank,
        blocked_ns=min(span.blocked_ns // count, mean_ns),
        stalled_ns=span.stalled_ns // count,
        bytes=span.nbytes // count,
        rss_bytes=span.rss_bytes if span.rss_bytes >= 0 else None,
        device_bytes=span.device_bytes if span.device_bytes >= 0 else None,
    )


SECTIONS = {"history": history, "time_spans": time_spans}
