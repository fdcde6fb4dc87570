"""communication-bound-step: waiting for communication takes a large share of the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median_high

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.phases import Phases
from dsprof.analysis.aggregates.pipelines import Pipelines
from dsprof.analysis.aggregates.placement import Placement
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import Traffic, Use, Volume
from dsprof.analysis.run.wait_attribution import Attribution, attribution
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import (
    capitalised,
    duration,
    named,
    percent,
    plural,
    ranks_do,
)
from dsprof.rules.causes import EXPOSED
from dsprof.rules.communication.late_rank_causes import by_place
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.collectives import POINT_TO_POINT, REDUCTIONS

_ROWS = 16
_LEAST_SHARE = 0.01  # of the step; a smaller wait is not worth a sentence
_CAUSE = (
    "The transfers take longer than the computation that overlaps them: too many bytes for the "
    "links, or slow links."
)
_LATENCY = (
    "The {} are small: latency, not size, sets the time of a call, and the step has too little "
    "computation to hide it."
)
_PEERS = (
    "A receive waits until the other rank has computed what it sends, and then for the transfer. "
    "The record does not tell the two apart."
)
_PEERS_ACTION = (
    "Between stages of a pipeline, divide a step into more micro-batches, or balance the stages. "
    "Otherwise start receives earlier, and compute before you wait for them."
)
_OR_RANK = " Or a rank without a trace arrives late, and these ranks wait for it."
_MOST = 0.5  # of the waiting, and more
_SMALL_BYTES = 1 << 16
"""The mean size of a call below which latency, and not the link, decides how long it takes."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a share is large, and when ranks differ."""

    exposed_share: float = 0.20  # of the step; mean over ranks
    severe_share: float = 0.40  # from here on the severity is high
    rank_spread: float = 0.15  # of the step, by which a late rank waits less than half of all do


class CommunicationBoundStep(Rule):
    """Weighs exposed communication against the step.

    Over gloo no transfer fails: a small model spends much of its step in gloo, and what a setting
    would change (small buckets, gradients in fp32) has rules of its own.
    """

    meta = RuleMeta(
        id="communication-bound-step",
        title="Exposed communication is below the limit",
        failing_title="The step waits for communication",
        why="While a rank waits for communication, its device does not compute.",
        category="communication",
        order=380,
        needs=(Arrivals, Engines, Phases, Pipelines, Placement, Run, Steps, Traffic),
        needs_ranks=True,
        min_steps=2,
        left_to="late-rank",
        leads=True,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge the share, and say whether the network or a late rank is behind it."""
        steps, share = run[Steps], run[Steps].exposed_share
        if share is None:
            yield self.meta.unknown(
                "Unknown: exposed communication was not measurable in this run."
            )
        elif share >= thresholds.exposed_share and (
            parts := _between_stages(run, share, thresholds.exposed_share)
        ):
            yield self._of_stages(run, f"{_waiting(steps, share)} {parts}", share)
        elif share >= thresholds.exposed_share:
            # A rank that left no trace may be the one that everybody waited for.
            split = attribution(run)
            shares = {} if run[Run].missing_ranks else steps.exposed_by_rank()
            late = _late_ranks(shares, thresholds.rank_spread)
            # The last rank to arrive does not wait for others: its wait is the network's.
            by_network = split.transfer if split else min(shares.values()) if late else share
            if by_network >= thresholds.exposed_share:
                yield self._bound(run, share, by_network, split, late, thresholds)
            elif split and not late and split.transfer >= split.waiting:
                yield self._mostly_transfer(run, share, split, thresholds)
            else:
                yield self._waiting_for(_named(late, split), run, share, split)
        else:
            text = f"{_waiting(steps, share)} The limit is {percent(thresholds.exposed_share)}."
            yield self.meta.finding(Status.PASS, text)

    def _of_stages(self, run: RunSummary, summary: str, share: float) -> Finding:
        cause, action = _of_even_stages(run, share)
        return self.meta.finding(
            Status.INFO,
            summary,
            title="Pipeline stages wait for each other",
            cause=cause,
            action=action,
            evidence=_evidence(run),
            restates=EXPOSED,
            confidence="medium",
        )

    def _bound(
        self,
        run: RunSummary,
        share: float,
        by_network: float,
        split: Attribution | None,
        late: tuple[int, ...],
        thresholds: Thresholds,
    ) -> Finding:
        summary = _waiting(run[Steps], share)
        by_peers = _sent_share(run) > _MOST
        if by_peers:
            summary += " Most of it is in sends and receives."
        elif share - by_network >= _LEAST_SHARE:
            # A rank that waits least by its own transfers is not the one that the others wait for.
            least = f", least on {named(late)}" if not split or split.is_for(late) else ""
            summary += f" {percent(by_network)} of the step is transfer, "
            summary += f"{percent(share - by_network)} is waiting for later arrivals{least}."
        evidence = _evidence(run)
        if run[Run].first.backend == "gloo":
            return self.meta.finding(
                Status.INFO,
                summary,
                cause=_PEERS
                if by_peers
                else "gloo moves data with the CPU cores that also compute, and this model "
                "computes little per byte that it sends. Settings that send less have their "
                "own findings." + _OR_RANK * bool(run[Run].missing_ranks),
                action=_PEERS_ACTION if by_peers else f"{_remedy(run)}.",
                evidence=evidence,
                restates=EXPOSED,
                confidence="medium",
            )
        by_latency = _is_by_latency(run[Traffic])
        shard = "" if by_latency else " Shard inside a node to send fewer bytes over the network."
        return self.meta.finding(
            Status.FAIL,
            summary,
            severity=Severity.HIGH if by_network >= thresholds.severe_share else Severity.MEDIUM,
            cause=(_PEERS if by_peers else _LATENCY.format("collectives") if by_latency else _CAUSE)
            + _OR_RANK * bool(run[Run].missing_ranks),
            action=_PEERS_ACTION if by_peers else f"{_remedy(run)}.{shard}",
            problem=f"{percent(by_network)} of the step is exposed communication",
            fix="Start receives earlier, or use more micro-batches"
            if by_peers
            else "Send in a lower precision, or over fewer ranks"
            if _grows_with_batch(run)
            else f"Compute more per {'call' if by_latency else 'byte'}: larger micro-batches",
            evidence=evidence,
            restates=EXPOSED,
            confidence="medium",
        )

    def _mostly_transfer(
        self, run: RunSummary, share: float, split: Attribution, thresholds: Thresholds
    ) -> Finding:
        return self.meta.finding(
            Status.INFO,
            f"{_waiting(run[Steps], share)} {percent(split.transfer)} of the step is transfer, "
            f"{percent(split.waiting)} is waiting for later arrivals.",
            cause="Most of it is transfer, which is below the limit of "
            f"{percent(thresholds.exposed_share)} without the waits.",
            action=f"{_remedy(run)}.",
            evidence=_evidence(run),
            restates=EXPOSED,
            confidence="medium",
        )

    def _waiting_for(
        self, late: tuple[int, ...], run: RunSummary, share: float, split: Attribution | None
    ) -> Finding:
        who = named(late) if late else "the last rank to arrive"
        # Not of two parts that read alike.
        is_most = split is None or (
            split.waiting > split.transfer and percent(split.waiting) != percent(split.transfer)
        )
        shared = by_place(run[Arrivals].matched, late) if len(late) > 1 else None
        parts = (
            f"{percent(split.waiting)} of the step is waiting, mostly for {who}; "
            f"{percent(split.transfer)} is transfer."
            if split
            else f"{ranks_do(late, 'wait') if late else capitalised(who)} least."
        )
        return self.meta.finding(
            Status.INFO,
            f"{_waiting(run[Steps], share)} {parts}",
            # Whether a rank is late in most steps is the verdict of late-rank.
            title="Exposed communication is mostly waiting for later arrivals" if is_most else "",
            cause="The ranks that wait least arrive last: their own work"
            f"{'' if shared else ', or an earlier collective of theirs,'} takes longer. "
            f"{f'{shared.cause} ' if shared else ''}A faster transfer of the collectives in which "
            "the others wait would not shorten these waits.",
            action=shared.action
            if shared
            else f"Look at what comes before the collectives of {who}: data loading, a slower "
            "processor, other programs on the host, or a larger share of the model."
            if late
            else "Balance what the ranks do before their collectives: tokens, samples, experts.",
            ranks=late,
            evidence=_evidence(run),
            restates=EXPOSED,
            confidence="medium",
        )


def _share_of_waits(traffic: Traffic, is_one: Callable[[Use, Volume], bool]) -> float:
    """Return how much of the waiting is for some uses."""
    chosen_ns = sum(one.exposed_ns for use, one in traffic.uses.items() if is_one(use, one))
    return chosen_ns / max(sum(one.exposed_ns for one in traffic.uses.values()), 1)


def _is_small(volume: Volume) -> bool:
    return volume.nbytes < _SMALL_BYTES * volume.calls


def _is_by_latency(traffic: Traffic) -> bool:
    """Whether most of the waiting is for uses whose calls are small."""
    is_known = not any(one.unsized or one.untimed for one in traffic.uses.values())
    return is_known and _share_of_waits(traffic, lambda _, one: _is_small(one)) > _MOST


def _named(late: tuple[int, ...], split: Attribution | None) -> tuple[int, ...]:
    """Return who causes most of the waits; who waits least, where that is not known."""
    if split is None or split.is_for(late):
        return late
    return () if split.latest is None else (split.latest,)


def _waiting(steps: Steps, share: float) -> str:
    took = duration((steps.exposed_ms_per_step or 0.0) * 1e6)
    return f"Exposed communication takes {took} per step on average ({percent(share)})."


def _sent_share(run: RunSummary) -> float:
    """Return how much of the waiting is in sends and receives."""
    return _share_of_waits(run[Traffic], lambda use, _: use.family in POINT_TO_POINT)


def _between_stages(run: RunSummary, share: float, least_transfer: float) -> str:
    """Say how much waiting is for what stages of a pipeline send each other; "": not most of it.

    Transfers of collectives are left out below `least_transfer`, a share of the step.
    """
    # Megatron's pipelines name their groups only.
    stages = run[Pipelines].stages
    is_staged = stages > 1 or any(
        group.role == "pipeline" for group in run[Arrivals].groups.values()
    )
    where = f"in sends and receives between the {f'{stages} ' if stages else ''}stages of the "
    sent = _sent_share(run)
    if is_staged and sent > _MOST:
        return f"Most of it is {where}pipeline."
    split = attribution(run) if is_staged else None
    if split is None:
        return ""
    waiting, transfer = ((1 - sent) * part for part in (split.waiting, split.transfer))
    if sent * share <= waiting or transfer >= least_transfer:
        return ""
    return (
        f"{percent(sent * share)} of the step is {where}pipeline, {percent(waiting)} is waiting "
        f"for later arrivals at collectives, {percent(transfer)} is their transfer."
    )


def _of_even_stages(run: RunSummary, share: float) -> tuple[str, str]:
    """Return why stages of equal time wait for each other, and what to do."""
    pipelines, traffic = run[Pipelines], run[Traffic]
    if pipelines.bubble is None:
        return _PEERS, (
            "If a step has fewer than four times as many micro-batches as stages, divide it into "
            "more. Otherwise balance the stages."
        )
    of_step = pipelines.bubble_of_step(share)
    if of_step >= _MOST * _sent_share(run) * share:
        return (
            "A stage waits until the stage before it has computed an activation, or the stage "
            "after it a gradient: the bubble of the schedule.",
            "Divide a step into more micro-batches, or use fewer stages.",
        )
    batches = plural(pipelines.micro_batches, "micro-batch", "micro-batches")
    cause = f"The bubble of {batches} explains only {percent(of_step)} of the step."
    sent = [one for use, one in traffic.uses.items() if use.family in POINT_TO_POINT]
    if any(one.unsized or not _is_small(one) for one in sent):
        return f"{cause} {_PEERS}", (
            "If stages take unequal time, balance them; otherwise place neighbouring stages on "
            "faster links. More micro-batches would not shorten these waits."
        )
    return f"{cause} {_LATENCY.format('messages')}", (
        "Use fewer and larger micro-batches: a message then carries more."
    )


def _remedy(run: RunSummary) -> str:
    """Say what gives more computation for the same bytes: accumulation, where it reduces once."""
    engines, traffic = run[Engines], run[Traffic]
    if _grows_with_batch(run):
        if "forward" not in run[Phases].rows:  # a program that averages models reduces outside, too
            return "Send in a lower precision, over fewer ranks, or less often"
        return (
            "Send in a lower precision, or over fewer ranks: most waits are for data that grows "
            "with the batch, so larger micro-batches do not compute more per byte"
        )
    if engines.stage is not None:
        accumulation = " or more accumulation steps" if engines.stage < 2 else ""
    elif _share_of_waits(traffic, lambda use, _: use.purpose == "gradients") <= _MOST:
        # Parameters and activations go in each micro-step.
        accumulation = ""
    elif traffic.micro_steps > traffic.reducing_micro_steps:
        accumulation = " or more accumulation steps"
    elif "backward" not in run[Phases].rows:  # inference reduces no gradients
        accumulation = ""
    else:
        return (
            "Use larger micro-batches, or accumulate gradients and reduce them only in the "
            "last micro-step (no_sync(), in FSDP2 set_requires_gradient_sync(False)): both "
            "compute more per byte"
        )
    return f"Use larger micro-batches{accumulation}: they compute more per byte"


def _grows_with_batch(run: RunSummary) -> bool:
    """Whether most of the waiting is for activations, or other data of the batch.

    So are all-to-alls (experts, sharded embeddings), and reductions of tensor parallelism.
    """
    families = {"all_to_all"} if run[Engines].engines else {"all_to_all", *REDUCTIONS}

    def is_of_batch(use: Use, volume: Volume) -> bool:
        return use.purpose == "other" and use.family in families and not _is_small(volume)

    return _share_of_waits(run[Traffic], is_of_batch) > _MOST


def _late_ranks(shares: dict[int, float], spread: float) -> tuple[int, ...]:
    """Return the ranks that wait far less than half of all do: one that is early tells nothing."""
    usual = median_high(shares.values()) if shares else 0.0
    return tuple(sorted(rank for rank, share in shares.items() if usual - share >= spread))


def _evidence(run: RunSummary) -> tuple[Table, ...]:
    return _by_rank(run[Steps]), _by_use(run[Traffic])


def _by_rank(steps: Steps) -> Table:
    shares = sorted(steps.exposed_by_rank().items(), key=lambda item: -item[1])
    return Table(
        columns=(Column("rank"), Column("waiting for communication", "share")),
        rows=tuple((rank, share) for rank, share in shares[:_ROWS]),
        caption="Share of the measured steps"
        + (f"; the {_ROWS} ranks that wait most" if len(shares) > _ROWS else ""),
    )


def _by_use(traffic: Traffic) -> Table:
    uses = sorted(traffic.uses.items(), key=lambda item: -item[1].exposed_ns)
    return Table(
        columns=(
            Column("used for"),
            Column("collective"),
            Column("blocked per step", "ns"),
            Column("bytes per step", "bytes"),
        ),
        rows=tuple(
            (
                use.purpose,
                use.family,
                None if volume.untimed else round(traffic.per_step(volume.exposed_ns)),
                None if volume.unsized else round(traffic.per_step(volume.nbytes)),
            )
            for use, volume in uses[:_ROWS]
        ),
        caption="Mean per rank and step",
    )
