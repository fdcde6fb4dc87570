"""allreduce-for-sharded-gradients: every rank receives gradients of which it keeps one share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import Purpose, Traffic, Use, Volume
from dsprof.analysis.collectives import busbw_factor
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Details, Finding, Severity, Status, Table
from dsprof.findings.wording import plural, size
from dsprof.rules.engine_by_engine import EngineTraffic, engine_by_engine
from dsprof.rules.reasons import NO_REDUCTION, SINGLE_RANK
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta
from dsprof.rules.savings import halving_saves, ns_per_byte


class AllreduceForShardedGradients(Rule):
    """Compares the collectives on the wire with those that the ZeRO stage needs.

    DeepSpeed's stages 1 and 2 never issue a reduce-scatter, whatever the configuration says: there
    an all-reduce is how the library works, and no problem of the run. At stage 3 it is one.
    """

    meta = RuleMeta(
        id="allreduce-for-sharded-gradients",
        title="Sharded gradients and parameters use the collectives of their ZeRO stage",
        failing_title="All-reduce is used where a reduce-scatter would suffice",
        why="With ZeRO a rank keeps one shard of the gradients. An all-reduce sends every rank "
        "all of them: twice the bytes of a reduce-scatter.",
        category="communication",
        order=160,
        needs=(Arrivals, BaselineCosts, Engines, Run, Steps, Traffic),
        needs_sizes=True,
        needs_groups=True,
        min_steps=1,
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Judge gradients by stage, and parameters at stage 3, engine by engine."""
        engines, traffic = run[Engines], run[Traffic]
        if not any(one.stage for one in engines.each):
            yield self.meta.not_applicable("No engine with ZeRO stage 1, 2 or 3 was recorded.")
        elif run[Run].first.world_size < 2:
            yield self.meta.not_applicable(SINGLE_RANK)
        elif not any(use.group_size > 1 for use in traffic.uses):
            yield self.meta.unknown(
                "No collective between two or more ranks was recorded in the measured steps."
            )
        elif len(engines.engines) > 1 and not traffic.turns:
            yield self.meta.unknown(
                "Unknown: which of several engines sent the traffic was not recorded."
            )
        else:
            for one in engine_by_engine(engines, traffic):
                if one.engines.stage:
                    yield from one.named(self._of_engine(one, run))

    def _of_engine(self, one: EngineTraffic, run: RunSummary) -> Iterable[Finding]:
        engines, traffic = one.engines, one.traffic
        if engines.stage == 3:
            yield from self._parameters(traffic, run)
        if not traffic.of("gradients"):
            if one.trains:
                yield self.meta.unknown(NO_REDUCTION)
        elif reduced := _all_reduces(traffic, "gradients"):
            judge = self._stage_3 if engines.stage == 3 else self._stage_1_or_2
            yield judge(engines, traffic, run, *reduced[0])

    def _stage_3(
        self, engines: Engines, traffic: Traffic, run: RunSummary, use: Use, volume: Volume
    ) -> Finding:
        switched_off = engines.zero("reduce_scatter", True) is False
        if switched_off and (needing := _needing_all_reduce(engines)):
            return self.meta.finding(
                Status.INFO,
                f"ZeRO-3 reduces gradients by all-reduce: {_calls(traffic, volume)} per step.",
                cause=f"reduce_scatter is false, because {needing} does not support it at this "
                "stage.",
                action=f"No change is needed; without {needing} a reduce-scatter sends half.",
                evidence=(_arithmetic(traffic, use, volume),),
                confidence="high",
            )
        return self.meta.finding(
            Status.FAIL,
            f"ZeRO-3 reduces gradients by all-reduce: {_calls(traffic, volume)} per step.",
            **Details(
                problem="ZeRO-3 all-reduces gradients",
                fix="" if switched_off else "Find their call site",
                severity=Severity.HIGH,
                cause="reduce_scatter is false in zero_optimization."
                if switched_off
                else "The cause is unknown: reduce_scatter is not false.",
                action='Set "reduce_scatter" to true in zero_optimization, or delete the key: true '
                "is its default."
                if switched_off
                else "Find the call site of these all-reduces in the communication table.",
                config_patch=_patch(reduce_scatter=True) if switched_off else None,
                confidence="high" if switched_off else "medium",
            )
            | _halved(traffic, run, use, volume),
        )

    def _parameters(self, traffic: Traffic, run: RunSummary) -> Iterable[Finding]:
        if not (found := _all_reduces(traffic, "parameters")):
            return
        use, volume = found[0]
        yield self.meta.finding(
            Status.FAIL,
            f"ZeRO-3 fetches parameters by all-reduce: {_calls(traffic, volume)} per step.",
            **Details(
                title="All-reduce is used where an all-gather would suffice",
                problem="Parameters are all-reduced",
                severity=Severity.HIGH,
                cause="stage3_use_all_reduce_for_fetch_params is true: each rank adds its shard to "
                "zeros instead of gathering the others.",
                action='Set "stage3_use_all_reduce_for_fetch_params" to false.',
                config_patch=_patch(stage3_use_all_reduce_for_fetch_params=False),
                confidence="high",
            )
            | _halved(traffic, run, use, volume),
        )

    def _stage_1_or_2(
        self, engines: Engines, traffic: Traffic, run: RunSummary, use: Use, volume: Volume
    ) -> Finding:
        if engines.written_zero("use_multi_rank_bucket_allreduce") is False and (
            blocker := next((key for key in _BLOCKERS if engines.zero(key, True) is False), "")
        ):
            return self._defeated(traffic, run, use, volume, blocker)
        demands = engines.written_zero("reduce_scatter") is True
        # Gradients of experts have groups of their own.
        reduced = _all_reduces(traffic, "gradients")
        extra = round(traffic.per_step(sum(one.nbytes * _other_ranks(use) for use, one in reduced)))
        text = (
            f"ZeRO-{engines.stage} reduces gradients by all-reduce, by design of DeepSpeed: "
            f"{_calls(traffic, *(one for _, one in reduced))} per step. A reduce-scatter would "
            f"send {size(extra)} less from each rank."
        )
        if demands:
            text += " reduce_scatter is true, but has no effect at this stage."
        return self.meta.finding(
            Status.INFO,
            text,
            cause="DeepSpeed's stages 1 and 2 have no reduce-scatter in any release: with "
            "use_multi_rank_bucket_allreduce, the default, a bucket that belongs to several ranks "
            "is all-reduced whole.",
            action='No change is needed. "use_multi_rank_bucket_allreduce": false sends one '
            "reduce to each owner instead (fewer bytes, more calls: for large buckets and few "
            "ranks); stage 3 and FSDP use reduce-scatter, but all-gather parameters more often.",
            evidence=tuple(_arithmetic(traffic, use, one) for use, one in reduced),
            saving_bytes_per_step=extra,
            confidence="high",
        )

    def _defeated(
        self, traffic: Traffic, run: RunSummary, use: Use, volume: Volume, key: str
    ) -> Finding:
        return self.meta.finding(
            Status.FAIL,
            "use_multi_rank_bucket_allreduce is false, but gradients are reduced by all-reduce "
            f"({_calls(traffic, volume)} per step).",
            **Details(
                title="All-reduce is used where reduces to the owners were configured",
                problem="Gradients are all-reduced",
                severity=Severity.LOW,
                cause=f"{key} is false: DeepSpeed then all-reduces whole buckets.",
                action=f'Set "{key}" to true in zero_optimization.',
                config_patch=_patch(**{key: True}),
                confidence="high",
            )
            | _halved(traffic, run, use, volume),
        )


def _all_reduces(traffic: Traffic, purpose: Purpose) -> list[tuple[Use, Volume]]:
    """Return the all-reduces of a purpose between ranks, the most bytes first."""
    uses = traffic.of(purpose).items()
    found = [(use, v) for use, v in uses if use.family == "all_reduce" and use.group_size > 1]
    return sorted(found, key=lambda pair: -pair[1].nbytes)


def _other_ranks(use: Use) -> float:
    """Return the share of the other ranks in a group: what a reduce-scatter spares of S."""
    return (use.group_size - 1) / use.group_size


_BLOCKERS = ("contiguous_gradients", "reduce_scatter")
"""Keys that keep reduces to the owners from being used where they are false."""


def _needing_all_reduce(engines: Engines) -> str:
    """Name the setting with which DeepSpeed refuses reduce_scatter at stage 3; "" if none is."""
    optimizer = engines.setting("optimizer")
    if isinstance(optimizer, dict) and str(optimizer.get("type")).lower() == "muon":
        return "Muon"
    if engines.setting("prescale_gradients"):
        return "prescale_gradients"
    divides = engines.setting("gradient_predivide_factor", 1.0) != 1.0
    return "gradient_predivide_factor" if divides else ""


def _halved(traffic: Traffic, run: RunSummary, use: Use, volume: Volume) -> Details:
    """Return evidence and savings of moving half the bytes; latency is not saved."""
    slope = ns_per_byte(run, use.family, use.group_size)
    exposed_ms, nbytes = traffic.per_step(volume.exposed_ns) / 1e6, traffic.per_step(volume.nbytes)
    return {
        "evidence": (_arithmetic(traffic, use, volume),),
        "saving_bytes_per_step": round(nbytes * _other_ranks(use)),
        "saving_ms_per_step": halving_saves(exposed_ms, nbytes, slope),
        "saving_from": use.purpose,
    }


def _arithmetic(traffic: Traffic, use: Use, volume: Volume) -> Table:
    size = traffic.per_step(volume.nbytes)
    rows = []
    better = "all_gather" if use.purpose == "parameters" else "reduce_scatter"
    for op in ("all_reduce", better):
        factor = busbw_factor(op, use.group_size) or 0.0
        rows.append((op, round(size), round(size * factor)))
    return Table(
        columns=(
            Column("collective"),
            Column("S, bytes of the arrays", "bytes"),
            Column("sent by each rank", "bytes"),
        ),
        rows=tuple(rows),
        caption=f"One step, groups of n = {use.group_size}: all_reduce sends 2(n-1)/n of S, "
        f"{better} (n-1)/n",
    )


def _patch(**keys: bool) -> dict[str, Any]:
    return {"zero_optimization": keys}


def _calls(traffic: Traffic, *volumes: Volume) -> str:
    calls = traffic.per_step(sum(one.calls for one in volumes))
    nbytes = traffic.per_step(sum(one.nbytes for one in volumes))
    return f"{plural(calls, 'call')} and {size(nbytes)}"
