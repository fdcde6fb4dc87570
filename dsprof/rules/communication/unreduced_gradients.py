"""unreduced-gradients: ranks train, and no gradient travels between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.intent import Account, Intent, Sent
from dsprof.analysis.aggregates.phases import Phases
from dsprof.analysis.aggregates.run import NOOP_HOOK, Run
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Details, Finding, Severity, Status
from dsprof.findings.wording import plural
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.collectives import REDUCTIONS

_WITHOUT_ENGINE = -1
_NO_GRADIENTS = frozenset({"all_gather", "barrier", "broadcast"})
"""What sends less than 4 KiB by them sends objects, flags and metrics."""
_SILENT = f"{NOOP_HOOK} of DDP"
_PARTS = frozenset({"pipeline", "tensor"})
"""Roles of groups whose ranks train parts of one model, which need no sum of gradients."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When gradients are missing."""

    steps: int = 10  # of one rank; fewer may be those between two averages of local SGD
    scalar_bytes: int = 32  # reduced per step; of a model that no library wraps, more may be its


class UnreducedGradients(Rule):
    """Fails training in which nothing is sent that could be gradients."""

    meta = RuleMeta(
        id="unreduced-gradients",
        title="Gradients are reduced between ranks",
        failing_title="Gradients are not reduced between ranks",
        why="Ranks that do not reduce their gradients train apart. The loss falls on each of them, "
        "so the error shows only in the quality of the model.",
        category="communication",
        order=175,
        needs=(Intent, Phases, Run),
        needs_ranks=True,
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Look for anything that could be gradients."""
        facts, account = run[Run], run[Intent].accounts.get(_WITHOUT_ENGINE)
        backward, step = (run[Phases].rows.get(name) for name in ("backward", "step"))
        if not (facts.is_recorded and account and backward and step):
            yield self.meta.not_applicable("No training without DeepSpeed was recorded.")
        elif step.ranks == 1 < len(facts.ranks):
            yield self.meta.not_applicable("Only one rank takes optimizer steps.")
        elif (sent := _exchanged(account)) and all(one.role in _PARTS for one in sent):
            yield self.meta.not_applicable("Only pipeline and tensor parallelism communicate.")
        elif not _is_apart(account, facts, thresholds):
            return
        elif account.obstacle and account.obstacle != _SILENT:
            yield self.meta.unknown(f"Unknown: the traffic of {account.obstacle} is not modelled.")
        elif facts.hides_collectives:
            yield self.meta.unknown("Unknown: collectives are missing from the trace.")
        elif (steps := step.rank_steps // step.ranks) < thresholds.steps:
            yield self.meta.too_few(steps, thresholds.steps)
        else:
            yield self._apart(account, facts, steps)

    def _apart(self, account: Account, facts: Run, steps: int) -> Finding:
        told = _UNWRAPPED
        if any(sent.kind == "parameters" for sent in account.sent):
            told = _FSDP
        elif facts.has_ddp:
            told = _NOOP if account.obstacle else _DDP
        number = plural(steps, "measured step")
        return self.meta.finding(
            Status.FAIL,
            f"In {number} the ranks reduce no gradients.",
            **Details(
                severity=Severity.HIGH,
                problem=f"No gradients are reduced in {number}",
                confidence="medium",
            )
            | told,
        )


def _is_apart(account: Account, facts: Run, thresholds: Thresholds) -> bool:
    sent, steps = account.sent, account.progress.steps
    is_wrapped = facts.has_ddp or any(one.kind == "parameters" for one in sent)
    reduced = sum(amount.nbytes for one, amount in sent.items() if one.family in REDUCTIONS)
    is_little = is_wrapped or reduced <= steps * thresholds.scalar_bytes
    return steps > 0 and is_little and not _exchanged(account)


def _exchanged(account: Account) -> list[Sent]:
    """Return what could be gradients."""
    ignored = REDUCTIONS | _NO_GRADIENTS
    return [
        one
        for one in account.sent
        if one.kind != "parameters" and (one.kind != "small" or one.family not in ignored)
    ]


_ON_PURPOSE = "No change is needed if ranks train apart on purpose, as in a search or in local SGD."

_DDP: Details = {
    "cause": "no_sync() is in force in each backward, so DDP never reduces: each rank trains a "
    "model of its own.",
    "action": "Run forward and backward of the last micro-step before optimizer.step() outside of "
    f"no_sync(). {_ON_PURPOSE}",
    "fix": "Run the last micro-step outside `no_sync()`",
}
_NOOP: Details = {
    "cause": "noop_hook is registered as the communication hook of DDP. It sends nothing: it shows "
    "how long a step is without reductions.",
    "action": f"Leave out register_comm_hook() to train one model. {_ON_PURPOSE}",
    "fix": "Do not register noop_hook",
}
_FSDP: Details = {
    "cause": "FSDP all-gathers parameters and never reduces: set_requires_gradient_sync(False) or "
    "no_sync() is in force in each backward, and the optimizer gets no gradients.",
    "action": "Call model.set_requires_gradient_sync(True) before the last micro-step (FSDP2), or "
    "run it outside of no_sync() (FSDP1).",
    "fix": "Let FSDP reduce in the last micro-step",
}
_UNWRAPPED: Details = {
    "cause": "No forward of DDP or FSDP was recorded: the model is not wrapped, or the loop calls "
    "the model inside the wrapper, as ddp.module(x) does. Each rank trains a model of its own.",
    "action": "Wrap the model in DistributedDataParallel, and call the wrapper: ddp(x), not "
    f"ddp.module(x). {_ON_PURPOSE[:-1]}, or if gradients travel outside torch.distributed, as by "
    "RPC or MPI.",
    "fix": "Wrap the model in DDP, and call the wrapper",
}
