"""new-group-in-step: the training loop creates process groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.new_groups import NewGroups
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import count, percent
from dsprof.rules.rule import Rule, RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When groups are created in the loop."""

    step_share: float = 0.5  # of the measured steps, with a new group


class NewGroupInStep(Rule):
    """Fails loops in which most steps use a group that no step before used."""

    meta = RuleMeta(
        id="new-group-in-step",
        title="The training loop creates no process groups",
        failing_title="The training loop creates process groups",
        why="All ranks of the world meet to create a group. With NCCL its first collective "
        "connects the ranks, which takes up to seconds, and its buffers take device memory.",
        category="communication",
        order=205,
        needs=(NewGroups,),
        needs_ranks=True,
        min_steps=10,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Count the steps with a new group."""
        new = run[NewGroups]
        share = new.steps / max(new.rank_steps, 1)
        if share < thresholds.step_share:
            return
        each = count(new.groups / new.rank_steps)
        yield self.meta.finding(
            Status.FAIL,
            f"{percent(share)} of the steps use a process group for the first time, {each} per "
            "step and rank.",
            severity=Severity.MEDIUM,
            cause="The program, or a library, creates groups in the training loop.",
            problem=f"{each} new process group{'' if each == '1' else 's'} per step",
            action="Call new_group() or init_device_mesh() once, before the loop, and use the same "
            "groups in all steps.",
            fix="Create groups once, before the loop",
            confidence="medium",
        )
