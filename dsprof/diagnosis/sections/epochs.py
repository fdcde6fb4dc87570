"""The epochs of a run whose workers were started more than once."""

from __future__ import annotations

from dsprof.analysis.aggregates.epochs import Epoch, Epochs
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts import epochs as parts
from dsprof.diagnosis.parts import filled
from dsprof.diagnosis.sections.run import moment


def epochs(summary: RunSummary) -> parts.Epochs:
    """Show all epochs; empty where there is one."""
    found, run = summary[Epochs], summary[Run]
    if not found.each:
        return parts.Epochs()
    shown = run.epoch
    rows = [_row(one, found.each[0].span.start_ns, shown, run) for one in found.each]
    return filled(parts.Epochs, found, rows=rows)


def _row(one: Epoch, zero_ns: int, shown: int, run: Run) -> parts.EpochRow:
    span, is_shown = one.span, one.number == shown
    trained, moments = span.trained or (None, None), span.steps_ns or (None, None)
    is_running = is_shown and run.is_running
    return filled(
        parts.EpochRow,
        one,
        is_shown=is_shown,
        started=moment(span.start_ns),
        hosts=list(one.hosts),
        restarts=one.restarts if one.restarts >= 0 else None,
        start_ns=span.start_ns - zero_ns,
        end_ns=span.end_ns - zero_ns,
        first_step_ns=moments[0] and moments[0] - zero_ns,
        last_step_ns=moments[1] and moments[1] - zero_ns,
        steps=span.count,
        first_step=trained[0],
        last_step=trained[1],
        end="running" if is_running else one.end,
        ranks=[] if is_running else list(one.ranks),
        why="" if is_running else one.why,
        repeated_steps=one.repeated,
    )


SECTIONS = {"epochs": epochs}
