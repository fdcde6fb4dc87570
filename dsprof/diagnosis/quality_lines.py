"""How far the figures of a run can be trusted, statement by statement."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dsprof.analysis.alignment.clocks import NO_TIME_LINE
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.run import Quality, RunInfo
from dsprof.findings import formatting as fmt
from dsprof.findings.wording import broken_off

Level = Literal["ok", "note", "flaw"]


@dataclass(frozen=True, slots=True)
class QualityLine:
    """One statement on how far the figures can be trusted.

    The levels are those of the rule data-quality: a flaw makes figures wrong or partial, where it
    fails; a note makes them less exact, where it remarks.
    """

    level: Level
    label: str
    text: str


def quality_lines(diagnosis: Diagnosis) -> Iterator[QualityLine]:
    """Judge the data: what is missing, and how exact the rest is."""
    quality = diagnosis.quality
    yield _ranks_line(quality, diagnosis.run)
    yield from _own_lines(diagnosis) if quality.is_recorded else _foreign_lines(diagnosis)
    for hook in quality.hooks:
        where = f" ({fmt.named_ranks(hook.ranks)})" if hook.ranks else ""
        yield QualityLine("note", f"Hook {hook.name}", f"{hook.why}{where}")
    for stranger in quality.strangers:
        yield QualityLine("note", "Skipped file", stranger)
    for note in quality.notes:
        yield QualityLine("note", "Note", note)


def _own_lines(diagnosis: Diagnosis) -> Iterator[QualityLine]:
    """Judge what dsprof itself recorded, and what that cost."""
    quality = diagnosis.quality
    yield _ending_line(quality, diagnosis.run)
    yield _events_line(quality)
    if quality.waits:
        yield _waits_line(quality)
    yield _clock_line(quality, _limit(diagnosis, "clock_bound_ms"))
    whole = "step" if diagnosis.run.steps else "time"
    yield _cost_line(quality, whole, _limit(diagnosis, "cost_share"))


def _foreign_lines(diagnosis: Diagnosis) -> Iterator[QualityLine]:
    """Judge files of other tools, which count neither what they dropped nor what they cost."""
    quality = diagnosis.quality
    text = "written by other tools than dsprof; completeness unknown"
    yield QualityLine("note", "Files", text)
    if quality.unclean_ranks:
        which = fmt.named_ranks(quality.unclean_ranks)
        yield QualityLine("flaw", "End of the files", f"truncated for {which}")
    events = _events_line(quality)
    if events.level != "ok":
        yield events
    if quality.clock_method != NO_TIME_LINE:
        yield _clock_line(quality, _limit(diagnosis, "clock_bound_ms"))


def _limit(diagnosis: Diagnosis, name: str) -> float:
    """The threshold of the rule data-quality that is in force; above any value if none is."""
    limit = diagnosis.threshold("data-quality", name)
    return math.inf if limit is None else limit


def _ranks_line(quality: Quality, run: RunInfo) -> QualityLine:
    if run.world_size is None:
        present = f"{fmt.count(len(run.ranks))} present; world size unknown"
        return QualityLine("note", "Ranks", present)
    present = f"{fmt.count(len(run.ranks))} of {fmt.count(run.world_size)} present"
    if not quality.missing_ranks:
        if not quality.partial_ranks:
            return QualityLine("ok", "Ranks", present)
        partial = fmt.named_ranks(quality.partial_ranks)
        return QualityLine("note", "Ranks", f"{present}; only a part of the steps of {partial}")
    missing = fmt.named_ranks(quality.missing_ranks)
    what = "trace" if quality.is_recorded else "file"
    return QualityLine("flaw", "Ranks", f"{present}; no {what} of {missing}")


def _ending_line(quality: Quality, run: RunInfo) -> QualityLine:
    flaws = [f"{fmt.named_ranks(r)} ended by {what}" for what, r in quality.exceptions.items()]
    if quality.unclean_ranks:
        flaws.append(f"{broken_off(quality.unclean_ranks)}; up to half a second is missing")
    if flaws:
        return QualityLine("flaw", "End of the run", "; ".join(flaws))
    if quality.left_ranks:
        text = f"{fmt.named_ranks(quality.left_ranks)} destroyed the process group, then"
        return QualityLine("note", "End of the run", f"{text} did not close the record")
    if run.is_running:
        return QualityLine("note", "End of the run", "not reached: the run goes on")
    return QualityLine("ok", "End of the run", "every rank closed its trace")


def _unknown(quality: Quality, what: str) -> str:
    """Say what the ends of records would have told; "" where none is missing."""
    if not (unclosed := quality.unclean_ranks + quality.left_ranks):
        return ""
    return f"{what} unknown for {fmt.named_ranks(unclosed)}: the record was not closed"


def _waits_line(quality: Quality) -> QualityLine:
    if unknown := _unknown(quality, "unmatched ones are"):
        known = _counts((quality.waits, "recorded"), (quality.unmatched_waits, "unmatched"))
        return QualityLine("note", "Waits", "; ".join([*known, unknown]))
    matched = fmt.count(quality.waits - quality.unmatched_waits)
    text = f"{matched} of {fmt.count(quality.waits)} matched to their collective"
    return QualityLine("note" if quality.unmatched_waits else "ok", "Waits", text)


def _events_line(quality: Quality) -> QualityLine:
    lost = _counts((quality.dropped_events, "dropped"), (quality.broken_lines, "unreadable"))
    partial = [
        f"{fmt.plural(number, noun)} {what}"
        for number, noun, what in (
            (quality.open_collectives, "collective", "without a recorded end"),
            (quality.counted_only_steps, "step", "counted but not recorded in detail"),
        )
        if number
    ]
    if quality.is_recorded and (unknown := _unknown(quality, "dropped events are")):
        partial.append(unknown)
    text = "; ".join(lost + partial) or "complete, none dropped"
    return QualityLine("flaw" if lost else "note" if partial else "ok", "Events", text)


def _counts(*numbers: tuple[int, str]) -> list[str]:
    return [f"{fmt.count(number)} {what}" for number, what in numbers if number]


def _clock_line(quality: Quality, limit_ms: float) -> QualityLine:
    method = quality.clock_method or "clocks of the ranks not aligned"
    bound_ns = quality.clock_bound_ns
    is_exact = bound_ns is not None and bound_ns <= limit_ms * 1e6 and bool(quality.clock_method)
    if bound_ns:
        bound = fmt.duration(bound_ns)
        method = f"{method}; differences below {bound} between ranks are ignored"
    return QualityLine("ok" if is_exact else "note", "Clock", method)


def _cost_line(quality: Quality, whole: str, limit: float) -> QualityLine:
    if quality.training_cost_share is None:
        text = "not measurable: no rank recorded all of its steps and closed its trace"
        return QualityLine("note", "Cost of dsprof", text)
    text = (
        f"{fmt.share(quality.training_cost_share)} of the {whole} in training threads (estimate), "
        f"{fmt.share(quality.writer_cost_share)} in the writer thread"
    )
    is_small = quality.training_cost_share <= limit
    return QualityLine("ok" if is_small else "note", "Cost of dsprof", text)
