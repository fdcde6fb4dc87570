"""defective-release: a library has a known defect that a later release fixes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding
from dsprof.rules.environment.settings_rule import SettingsRule
from dsprof.rules.rule import RuleMeta


class DefectiveRelease(SettingsRule):
    """Looks for the releases that the table lists; one that is not known is none of them."""

    meta = RuleMeta(
        id="defective-release",
        title="No release with a known serious defect is in use",
        failing_title="A release with a known serious defect is in use",
        why="A hang every few hours looks like a bug of the program or a problem of the network, "
        "so check the release first.",
        category="environment",
        order=730,
        needs=(EnvironmentFacts,),
    )

    def check(self, run: RunSummary, thresholds: Any) -> Iterable[Finding]:
        """Report known defects, and an unknown release of NCCL."""
        yield from super().check(run, thresholds)
        facts = run[EnvironmentFacts]
        if facts.recorded and facts.uses_nccl and "nccl" not in facts.versions:
            yield self.meta.unknown("Unknown: the version of NCCL or RCCL was not recorded.")
