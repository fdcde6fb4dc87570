"""From the files of a run to its diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dsprof._version import __version__
from dsprof.analysis.aggregates import AGGREGATES
from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.timelines import Timelines
from dsprof.analysis.baseline import Baseline
from dsprof.analysis.engine import HERE, Engine, Progress, unshown
from dsprof.analysis.epochs import with_epochs
from dsprof.analysis.summarise import draw_steps, summarise
from dsprof.analysis.summary import Aggregate, RunSummary
from dsprof.diagnosis.baseline import baseline_note, with_baseline
from dsprof.diagnosis.headline import (
    headline_of,
    leading,
    next_lines,
    verdict,
    without_problem,
)
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.role_maps import role_maps
from dsprof.diagnosis.sections import sections
from dsprof.diagnosis.sections.communication import expected_curves, transfers
from dsprof.diagnosis.sections.hang import hang
from dsprof.diagnosis.sections.history import history_note
from dsprof.diagnosis.sections.quality import in_a_line, quality
from dsprof.diagnosis.sections.run import rule_infos, run_info, thresholds_in_force
from dsprof.diagnosis.sections.steps import split_steps
from dsprof.diagnosis.step_map import step_map
from dsprof.diagnosis.throughput import throughput, utilisation_info
from dsprof.diagnosis.tiles import kind_of, tiles
from dsprof.diagnosis.timeline_places import timeline_places
from dsprof.diagnosis.timelines import Draw, timelines
from dsprof.plugins import entry_points
from dsprof.rules import all_rules, plugin_rules
from dsprof.rules.runner import judge
from dsprof.trace.run import RunFiles


def diagnose(
    run: RunFiles,
    thresholds: Mapping[str, Any] | None = None,
    *,
    baseline: tuple[Baseline, str] | None = None,
    engine: Engine = HERE,
    progress: Progress = unshown,
    is_running: bool = False,
) -> Diagnosis:
    """Read a run, judge it, and say what it did.

    `thresholds` replaces those of a rule by its id; `baseline` holds costs measured on the machine
    and the name of their source; the others are those of `summarise_all`.

    Raises:
        TraceError: no file can be read.
    """
    summary = summarise_all(run, engine=engine, progress=progress, is_running=is_running)
    draw = partial(draw_steps, run, engine=engine)
    if baseline is None:
        return diagnosis_of(summary, thresholds or {}, draw)
    summary, info = with_baseline(summary, *baseline)
    diagnosis = diagnosis_of(summary, thresholds or {}, draw)
    diagnosis.baseline = info
    diagnosis.quality.notes += filter(None, [baseline_note(info)])
    return diagnosis


def summarise_all(
    run: RunFiles,
    *,
    engine: Engine = HERE,
    progress: Progress = unshown,
    is_running: bool = False,
) -> RunSummary:
    """Collect every aggregate that `diagnosis_of` needs; most arguments are those of `summarise`.

    The end of a run that goes on is judged only if no step of it will end, a rank has failed, or
    Slurm has ended it.

    Raises:
        TraceError: no file can be read.
    """
    found = with_epochs(summarise(run, _kinds(), engine=engine, progress=progress), run, engine)
    step_ns, endings = found[Steps].mean_ns, found[Endings]
    is_failed = endings.is_stalled(step_ns) or endings.has_failed(step_ns)
    is_over = found[Logs].is_job_over or is_failed
    is_moving = is_running and not is_over
    # Put in order here: the caller would hold the other order, too.
    return found.with_part(replace(found[Run], is_running=is_moving)).in_order()


def _kinds() -> tuple[type[Aggregate], ...]:
    """Return what is collected of a run: rules of plugins bring aggregates of their own."""
    theirs = [kind for rule in plugin_rules() for kind in rule.meta.needs]
    return tuple(dict.fromkeys((*AGGREGATES, *theirs)))


def diagnosis_of(
    summary: RunSummary, thresholds: Mapping[str, Any], draw: Draw | None = None
) -> Diagnosis:
    """Judge a summary of every aggregate, in order; `draw` reads ranks again for the timelines."""
    rules = all_rules()
    summary = summary.with_part(summary[Steps].alike())  # once all ranks are there
    findings = judge(summary, rules, thresholds)
    steps = split_steps(summary, findings)
    typical, lead = steps.typical, leading(findings, steps.typical)
    findings = sorted(findings, key=lambda one: one is not lead)  # the first is the headline's
    mapped = step_map(summary, findings, typical.settled_from if typical else None)
    diagnosis = Diagnosis(
        run=run_info(summary),
        quality=quality(summary[Run], summary[Steps], entry_points.problems()),
        steps=steps,
        dsprof_version=__version__,
        verdict=verdict(findings, summary, typical),
        headline=headline_of(lead) if lead else without_problem(findings, summary, typical),
        next_lines=next_lines(findings, lead),
        findings=findings,
        hang=hang(summary, thresholds),
        step_map=mapped,
        timelines=timelines(summary[Timelines], findings, mapped, draw),
        transfers=transfers(summary, thresholds),
        thresholds=thresholds_in_force(rules, thresholds),
        rules=rule_infos(rules, findings),
        utilisation=utilisation_info(summary),
        throughput=throughput(summary, typical),
        **{field: make(summary) for field, make in sections().items()},
    )
    marks = (diagnosis.history.map if diagnosis.history.map.ranks else mapped).marks
    diagnosis.role_maps = role_maps(summary, marks)
    diagnosis.expected_curves = expected_curves(summary, diagnosis.transfers)
    diagnosis.timeline_places = timeline_places(findings, diagnosis.timelines, mapped)
    note = history_note(
        diagnosis.history, summary[Steps], has_times=bool(diagnosis.time_spans.spans)
    )
    diagnosis.quality.notes += filter(None, [note])
    diagnosis.kind, diagnosis.tiles = kind_of(diagnosis), tiles(diagnosis)
    diagnosis.quality.line, diagnosis.quality.limits = in_a_line(diagnosis)
    return diagnosis
