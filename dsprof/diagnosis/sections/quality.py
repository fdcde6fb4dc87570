"""How far the figures of a run can be trusted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.history import History
from dsprof.diagnosis.parts.run import HookNote, Quality, RunInfo
from dsprof.findings.finding import Status
from dsprof.findings.wording import duration, named, percent, plural
from dsprof.trace.rolling.parts import KEPT, SERIES, STEPS, TAILS

_CATEGORY = "quality"
_COUNTS = ("broken_lines", "waits", "open_collectives")
_PARTS = {
    KEPT: "details of steps that were kept",
    STEPS: "sums of single steps",
    SERIES: "sums over time",
    **dict.fromkeys(TAILS, "details of the newest steps"),
}
_OF_TRAILERS = ("dropped", "unmatched_waits")


def quality(run: Run, steps: Steps, problems: Iterable[str] = ()) -> Quality:
    """Collect what is missing, dropped, unmatched or inexact, and what recording cost.

    `problems` are sentences on plugins that could not be used.
    """
    sums: Counter[str] = Counter()
    for facts in run.ranks.values():
        sums.update({name: getattr(facts, name) for name in _COUNTS})
        if facts.trailer is not None:
            sums.update({name: getattr(facts.trailer, name) for name in _OF_TRAILERS})
    costs = run.cost_shares(steps) if run.is_recorded else None
    return Quality(
        missing_ranks=run.unread_ranks,
        unclean_ranks=run.unclean_ranks,
        left_ranks=run.left_ranks,
        partial_ranks=steps.partial_ranks,
        exceptions=run.exceptions,
        is_recorded=run.is_recorded,
        strangers=list(run.strangers),
        dropped_events=sums["dropped"],
        broken_lines=sums["broken_lines"],
        counted_only_steps=len(steps.counted),
        unmatched_waits=sums["unmatched_waits"],
        waits=sums["waits"],
        open_collectives=sums["open_collectives"],
        clock_bound_ns=run.clock_bound_ns,
        clock_method=run.clock_method,
        training_cost_share=costs[0] if costs else None,
        writer_cost_share=costs[1] if costs else None,
        hooks=_hook_notes(run),
        notes=[
            *_notes(run),
            *_of_several_runs(run),
            *_lost_parts(run),
            *_unknown_records(run),
            *_partial(run, steps),
            *problems,
        ],
    )


def _of_several_runs(run: Run) -> Iterator[str]:
    """Logs do not name their run: those of several jobs in a folder are read as one."""
    world, last = run.first.world_size, max(run.ranks)
    if run.is_world_known and last >= world:
        yield (
            f"One file states {plural(world, 'rank')}, another one is of rank {last}: they are "
            "probably of several runs. Give the files of one run."
        )


def in_a_line(diagnosis: Diagnosis) -> tuple[str, list[str]]:
    """Return the quality of a record in a few words, and what of it makes figures wrong."""
    found = diagnosis.findings
    limits = [
        one.problem for one in found if one.category == _CATEGORY and one.status is Status.FAIL
    ]
    return _words(diagnosis.quality, diagnosis.run, diagnosis.history), limits


def _words(quality: Quality, run: RunInfo, history: History) -> str:
    world = run.world_size
    present = f"{plural(len(run.ranks), 'rank')}; world size unknown"
    if world:
        present = f"{len(run.ranks):,} of {plural(world, 'rank')}"
    selected = f", selected: {run.selection.replace('; ', ', ')}" if run.selection else ""
    if not quality.is_recorded:
        return f"{present}{selected}; from other tools, completeness unknown"
    part = "with only a part of the steps"
    gaps = (
        (len(quality.unclean_ranks), "record breaks off", "records break off"),
        (len(quality.left_ranks), "record not closed", "records not closed"),
        (len(quality.partial_ranks), part, part),
        (quality.dropped_events, "dropped event", "dropped events"),
        (quality.broken_lines, "unreadable line", "unreadable lines"),
        (quality.counted_only_steps, "step only counted", "steps only counted"),
        (history.lost_steps, "step not recorded", "steps not recorded"),
    )
    told = [f"{n:,} {one if n == 1 else several}" for n, one, several in gaps if n]
    if history.detailed_steps < history.steps:
        told.append(f"details of {history.detailed_steps:,} of {history.steps:,} steps")
    if history.newest_ns:
        told.append(f"details only of the last {duration(history.newest_ns)}")
    state = "still running" if run.is_running else "" if selected else "complete"
    cost = quality.training_cost_share
    whole = "a step" if run.steps else "the time"
    costs = "" if cost is None else f"; recording cost {percent(cost)} of {whole}"
    notes = len(quality.notes) + len(quality.hooks) + len(quality.strangers)
    remarks = f"; {plural(notes, 'note')}" if notes else ""
    lacks = ", ".join(filter(None, [present, *(told or [state])]))
    return f"{lacks}{selected}{costs}{remarks}"


def _partial(run: Run, steps: Steps) -> Iterator[str]:
    """Say what of the run is left out."""
    if str(run.selection):
        yield f"Only a part of the run was read, as requested: {run.selection}"
    world, hosts = run.first.world_size, run.selection.hosts
    if run.is_world_known and any(some.stop > world for some in run.selection.ranks):
        yield f"The run has {plural(world, 'rank')}: of those requested, the others do not exist"
    if hosts and (unknown := hosts.difference(run.hosts.values())):
        yield f"No rank of this run was on host {', '.join(sorted(unknown))}"
    if steps.is_sampled:
        kept = f"{len(steps.numbers):,} of {steps.recorded:,} steps"
        yield f"Step times cover {kept}, the same on all ranks"


def _notes(run: Run) -> list[str]:
    """Return each note once, with the highest count of a rank where it was met several times."""
    most: dict[str, int] = {}
    for rank in sorted(run.ranks):
        for text, count in run.ranks[rank].notes.items():
            most[text] = max(count, most.get(text, 0))
    return [text if n == 1 else f"{text} ({n:,} times on a rank)" for text, n in most.items()]


def _lost_parts(run: Run) -> Iterator[str]:
    """Say which files of rolling recordings are missing."""
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    for rank in sorted(run.ranks):
        for ending in run.ranks[rank].lost_parts:
            ranks[ending].append(rank)
    for ending, of in sorted(ranks.items()):
        yield (
            f"The file trace*{ending} of {named(of)} is missing, and {_PARTS[ending]} with it: "
            "copy all files of a rank"
        )


def _unknown_records(run: Run) -> Iterator[str]:
    if count := sum(facts.unknown_records for facts in run.ranks.values()):
        newest = max(facts.header.versions.get("dsprof", "") for facts in run.ranks.values())
        yield (
            f"{count:,} record{'' if count == 1 else 's'} of unknown kinds: read the trace with "
            f"the dsprof that recorded it ({newest or 'a newer release'})"
        )


def _hook_notes(run: Run) -> list[HookNote]:
    ranks: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in sorted(run.ranks):
        facts = run.ranks[rank]
        for hook in facts.hooks:
            for text in filter(None, (hook.why, *hook.lost)):
                ranks[hook.name, text].append(rank)
        if facts.trailer is not None:
            for name, why in facts.trailer.failed_hooks.items():
                if rank not in ranks[name, why]:  # a trace that ended well says it twice
                    ranks[name, why].append(rank)
    return [HookNote(name=n, why=why, ranks=r) for (n, why), r in ranks.items()]
