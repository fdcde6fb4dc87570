"""low-comm-overlap: communication that could run behind computation, and does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.fetches import Fetches
from dsprof.analysis.aggregates.flushes import Flushes
from dsprof.analysis.aggregates.overlap import Overlap
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.wait_causes import WaitCauses
from dsprof.analysis.run.wait_attribution import Attribution, attribution
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Details, Finding, Range, Severity, Status, Table
from dsprof.findings.wording import duration, percent, plural
from dsprof.rules.causes import EXPOSED
from dsprof.rules.evidence.calls import share_of_step
from dsprof.rules.evidence.waits import longest_wait, longest_waits
from dsprof.rules.knowledge.deepspeed.conflicts import before_overlapping
from dsprof.rules.knowledge.stage3 import (
    MAX_LIVE,
    MAX_LIVE_DEFAULT,
    PREFETCH,
    low_max_live,
    two_fetches,
)
from dsprof.rules.reasons import SINGLE_RANK
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import hiding_saves
from dsprof.trace.schema import ROLES


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When overlap is low, and when that matters."""

    overlap: float = 0.5  # of the time in flight of asynchronous collectives
    exposed_share: float = 0.05  # of the step, in waits for them; below, nothing is to be won
    failing_overlap: float = 0.25  # on a device, less is a failure...
    failing_share: float = 0.10  # ...if transfers are exposed for so much of the step
    severe_share: float = 0.40


_AT_ONCE = ("tensor", "sequence", "context", "expert", "model")
"""Roles of groups that exchange activations."""


class LowCommOverlap(Rule):
    """Judges only asynchronous collectives: a synchronous call cannot overlap on a host clock."""

    meta = RuleMeta(
        id="low-comm-overlap",
        title="Asynchronous communication is mostly hidden, or its waits are short",
        failing_title="Communication is not hidden behind computation",
        why="Communication that overlaps with computation costs nothing; waiting for it right "
        "after its start exposes all of it.",
        category="overlap",
        order=300,
        needs=(
            Arrivals,
            WaitCauses,
            BaselineCosts,
            Communication,
            Engines,
            Fetches,
            Flushes,
            Overlap,
            Run,
            Steps,
        ),
        min_steps=2,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge the overlap, if the trace can tell."""
        overlap = run[Overlap]
        if run[Steps].is_counted:
            yield self.meta.unknown(
                "Unknown: collectives were only counted, so their times in flight are missing."
            )
        elif overlap.sync_calls + overlap.async_calls == 0:
            yield self.meta.not_applicable("The training sends no data in the measured steps.")
        elif not overlap.is_timed and not overlap.on_device:
            yield self.meta.unknown("Unknown: the trace has no device times.")
        elif overlap.unwaited_calls:
            unwaited = plural(overlap.unwaited_calls, "asynchronous collective")
            yield self.meta.unknown(
                f"Unknown: {unwaited} without a recorded wait, probably awaited in C++."
            )
        elif overlap.on_device and run[Run].first.world_size < 2:
            yield self.meta.not_applicable(SINGLE_RANK)
        elif overlap.async_calls == 0:
            evidence = (_figures(overlap), longest_waits(run[WaitCauses]))
            if run[Run].is_cpu:
                yield self._synchronous(run, evidence)
            else:
                yield self._on_one_stream(run, evidence, thresholds)
        else:
            yield from self._asynchronous(run, overlap, thresholds)

    def _synchronous(self, run: RunSummary, evidence: tuple[Table, ...]) -> Finding:
        engines, library = run[Engines], _caller(run)
        summary = "All collectives are synchronous calls, which on a CPU cannot overlap."
        wanted = engines.written_zero("overlap_comm") is True
        if wanted:
            summary += " overlap_comm is true but has no effect here."
        return self.meta.finding(
            Status.INFO,
            summary,
            cause=f"{library} communicates by synchronous calls and lets streams of the device "
            "overlap them; a CPU has no streams."
            if library
            else "The program waits in the call itself.",
            action="No change is needed; on accelerators the same calls can overlap."
            if library
            else "Pass async_op=True and wait where the result is first needed.",
            evidence=evidence,
            restates=EXPOSED,
            confidence="high",
        )

    def _on_one_stream(
        self, run: RunSummary, evidence: tuple[Table, ...], thresholds: Thresholds
    ) -> Finding:
        engines, share = run[Engines], run[Steps].exposed_share
        offered = engines.stage is not None and engines.zero("overlap_comm") is False
        first = before_overlapping(engines.deepspeed, engines.stage)
        summary = "All collectives run on the stream that computes, and cannot overlap with it"
        role = _needed_at_once(run[Communication])
        # unhidden-reduction judges what stages 1 and 2 do.
        gravity = (
            Details()
            if share is None or engines.stage in (1, 2) or role
            else _gravity(share, attribution(run), thresholds)
        )
        return self.meta.finding(
            Status.FAIL if gravity else Status.INFO,
            f"{summary}."
            if share is None
            else f"{summary}: {percent(share)} of the step is exposed.",
            **Details(
                cause=f"Most of it is in {ROLES[role]} groups: the next layer needs each result "
                "at once."
                if role and not offered
                else "A stream runs its work in order, one item after another.",
                action='Set "overlap_comm": true under zero_optimization: gradients are then '
                f"reduced on a separate stream.{first}"
                if offered
                else "Keep these groups inside a node, with as few ranks as memory allows."
                if role
                else "Pass async_op=True and wait where the result is first needed.",
                fix="Set `overlap_comm` to true" if offered else "",
                evidence=evidence,
                restates="" if offered else EXPOSED,
                confidence="high",
            )
            | gravity,
        )

    def _asynchronous(
        self, run: RunSummary, overlap: Overlap, thresholds: Thresholds
    ) -> Iterable[Finding]:
        bounds = overlap.bounds
        if bounds is None:
            yield self.meta.unknown("Unknown: no end of an asynchronous collective was seen.")
            return
        low, high = bounds
        exposed_ms = overlap.exposed_ns / max(overlap.rank_steps, 1) / 1e6
        share = share_of_step(exposed_ms, run[Steps])
        if high - low < 0.01:
            hidden = percent(low)
        else:
            hidden = f"{percent(low)} to {percent(high)}" if low else f"At most {percent(high)}"
        summary = (
            f"{hidden} of {'' if overlap.on_device else 'asynchronous '}communication is hidden; "
            f"the exposed part takes {duration(exposed_ms * 1e6)} per step ({percent(share)})."
        )
        engines = run[Engines]
        if low >= thresholds.overlap or share < thresholds.exposed_share:
            yield self.meta.finding(Status.PASS, summary)
        elif high >= thresholds.overlap:
            yield self.meta.unknown(
                f"Unknown: ends of collectives are known only within intervals. {summary}"
            )
        elif engines.stage == 3 and engines.zero(PREFETCH) == 0:
            yield self._no_prefetch(run, summary, exposed_ms)
        else:
            which = longest_wait(run[WaitCauses], only_async=True)
            split, on_device = attribution(run), not run[Run].is_cpu
            fails = on_device and high < thresholds.failing_overlap
            gravity = _gravity(share, split, thresholds) if fails else Details()
            if overlap.on_device:
                cause = _on_device_cause(split, run[Run])
                action = _on_device_action(split, run[Engines])
            else:
                is_by_gloo = on_device and run[Run].first.backend == "gloo"
                cause, action = _BY_GLOO if is_by_gloo else _ON_HOST
            yield self.meta.finding(
                Status.FAIL if gravity else Status.INFO,
                f"{summary} {which}".strip(),
                **Details(
                    cause=cause + _in_order(run),
                    action=action,
                    evidence=(_figures(overlap), longest_waits(run[WaitCauses])),
                    restates=EXPOSED,
                    confidence="medium",
                )
                | gravity,
            )

    def _no_prefetch(self, run: RunSummary, summary: str, exposed_ms: float) -> Finding:
        elements = two_fetches(run[Fetches])
        live = low_max_live(run[Engines], run[Fetches])
        room = (
            ""
            if live is None
            else (
                f' "{MAX_LIVE}", now {live:,}, leaves no room for that: set it to '
                f"{MAX_LIVE_DEFAULT:,}, its default, or as high as memory allows."
            )
        )
        patch = {PREFETCH: elements} | ({} if live is None else {MAX_LIVE: MAX_LIVE_DEFAULT})
        return self.meta.finding(
            Status.FAIL,
            summary,
            severity=Severity.MEDIUM,
            cause=f"{PREFETCH} is 0: parameters are all-gathered when they are needed, never "
            "ahead.",
            action=f'Set "{PREFETCH}" to {elements:,} elements, about two fetches of this model. '
            f"Larger values merge fetches into one wait.{room}",
            title="Prefetching is off",
            problem="Prefetching is off",
            config_patch={"zero_optimization": patch},
            evidence=(_figures(run[Overlap]), longest_waits(run[WaitCauses])),
            saving_ms_per_step=_prefetching_saves(run, exposed_ms),
            saving_from="parameters",
            confidence="medium",
        )


_ON_HOST = (
    "Collectives are waited for soon after they start, or computation uses the same CPU cores.",
    "Start collectives earlier, or reserve CPU cores for communication. Settings known to help "
    "have their own findings.",
)
_BY_GLOO = (
    "The backend gloo copies tensors of a GPU through host memory and sends them over TCP.",
    "Use the backend nccl (on AMD it has the same name and uses RCCL), and give each rank its own "
    "GPU.",
)


def _on_device_cause(split: Attribution | None, run: Run) -> str:
    if split is None:
        why = "files of ranks are missing"
        if not run.missing_ranks:
            why = "too few of the collectives are recorded on all ranks"
        return (
            "No other kernel ran beside these communication kernels: the next kernel needs their "
            f"result, or they wait for a late rank (unknown: {why})."
        )
    if split.waiting > split.transfer:
        who = " for late ranks" if split.latest is None else f", mostly for rank {split.latest}"
        return f"For most of it ({percent(split.waiting)} of the step) ranks wait{who}."
    return (
        "No other kernel ran beside these communication kernels: the next kernel needs their "
        f"result. {percent(split.transfer)} of the step is transfer, {percent(split.waiting)} "
        "waits for a late rank."
    )


def _on_device_action(split: Attribution | None, engines: Engines) -> str:
    if split is not None and split.waiting > split.transfer:
        return "First fix what makes ranks late: overlap cannot hide a wait for a late rank."
    ways = "prefetch, use smaller buckets"
    if engines.zero("overlap_comm") is not True:
        ways += ", set overlap_comm to true"
    return f"Start collectives earlier: {ways}."


def _gravity(share: float, split: Attribution | None, thresholds: Thresholds) -> Details:
    """Return how much it matters that nothing is hidden; {} where a late rank is what costs.

    Without the other ranks what is exposed may be a wait for one of them: that is less sure.
    """
    transfer = share if split is None else min(share, split.transfer)
    if transfer < thresholds.failing_share:
        return {}
    severity = Severity.HIGH if transfer >= thresholds.severe_share else Severity.MEDIUM
    return {"severity": severity, "confidence": "low" if split is None else "medium"}


def _in_order(run: RunSummary) -> str:
    """Say why a reduction of ZeRO-3 can hold what it runs beside; read in 0.17.0 and 0.19.8."""
    engines = run[Engines]
    on_cpu = run[Run].is_cpu and not run[Overlap].on_device
    hpz = engines.zero("zero_hpz_partition_size", 1)
    apart = engines.zero("zero_quantized_gradients") or hpz != 1
    if engines.stage != 3 or on_cpu or apart:
        return ""
    return (
        " At stage 3 all-gathers and reduce-scatters share a process group, which runs them in the "
        "order of issue: an all-gather that backward needs waits for earlier reduce-scatters."
    )


def _prefetching_saves(run: RunSummary, exposed_ms: float) -> Range | None:
    """Return what it saves to gather each parameter during what comes before it.

    The first gather of a micro-step has nothing before it; that of backward has forward.
    """
    steps, fetches = run[Steps], run[Fetches].rows.items()
    gathers = [sums for kind, sums in fetches if kind.kind == "fetch" and sums.rank_steps]
    micro_steps = max(steps.total.micro_steps / len(steps.measured), 1)
    calls = sum(sums.calls / sums.rank_steps for sums in gathers) / micro_steps
    if not calls or steps.total.compute_ns is None:
        return None
    computed_ms = steps.total.compute_ns / len(steps.measured) / 1e6
    return hiding_saves(exposed_ms, computed_ms, calls, run[BaselineCosts])


def _caller(run: RunSummary) -> str:
    """Return the library whose calls these are; "" for the program's own."""
    if run[Engines].stage is not None:
        return "DeepSpeed"
    gathered = (kind.library for kind in run[Fetches].rows)
    reduced = (kind.library for kind in run[Flushes].rows)
    return next((library for library in chain(gathered, reduced) if library), "")


def _figures(overlap: Overlap) -> Table:
    steps = max(overlap.rank_steps, 1)
    rows = (
        ("synchronous", None, round(overlap.sync_calls / steps, 1)),
        ("asynchronous, waited for", overlap.exposed_ns // steps, _calls(overlap)),
        ("in flight, at least", overlap.least_in_flight_ns // steps, _calls(overlap)),
        ("in flight, at most", overlap.most_in_flight_ns // steps, _calls(overlap)),
    )
    return Table(
        columns=(Column("per step and rank"), Column("value", "ns"), Column("calls", "count")),
        rows=tuple(row for row in rows if row[2]),
    )


def _calls(overlap: Overlap) -> float:
    return round(overlap.async_calls / max(overlap.rank_steps, 1), 1)


def _needed_at_once(communication: Communication) -> str:
    """Return the role of groups that exchange activations, if these expose most of the time."""
    exposed: Counter[str] = Counter()
    for kind, row in communication.rows.items():
        exposed[kind.role] += row.exposed_ns or 0
    role = max(_AT_ONCE, key=lambda one: exposed[one])
    at_once = sum(exposed[one] for one in _AT_ONCE)
    return role if 2 * at_once > exposed.total() else ""
