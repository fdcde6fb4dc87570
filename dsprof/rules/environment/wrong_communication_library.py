"""wrong-communication-library: two copies of NCCL, or no plugin where the network needs one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.rank_sets import (
    RankSet,
    in_several,
    named_ranks,
    ranks_of,
    union,
    written_ranks,
)
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import capitalised
from dsprof.rules.environment.platform import answer, several_hosts
from dsprof.rules.hardware.hosts import links
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta

_LIBRARY = re.compile(r"/lib(nccl|rccl)\.so[^/]*$")
_PLUGIN = re.compile(r"/lib(?:nccl|rccl)-net[^/]*\.so[^/]*$|/lib[^/]*ofi-nccl[^/]*\.so[^/]*$")


class WrongCommunicationLibrary(Rule):
    """Looks at the communication libraries that ranks have loaded."""

    meta = RuleMeta(
        id="wrong-communication-library",
        title="Each rank has loaded one NCCL, and the plugin that its network needs",
        failing_title="Ranks loaded the wrong communication libraries",
        why="LD_LIBRARY_PATH decides which copy of NCCL and which plugin a process finds. EFA "
        "and Slingshot need a plugin; without it NCCL silently uses TCP.",
        category="environment",
        order=720,
        needs=(EnvironmentFacts,),
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report ranks with two copies, and ranks without a plugin on EFA or Slingshot."""
        facts = run[EnvironmentFacts]
        if not facts.uses_nccl:
            yield self.meta.not_applicable("The run does not use NCCL or RCCL.")
            return
        held = _held(facts, _LIBRARY)
        if not held:
            yield self.meta.unknown(
                "Unknown: loaded libraries, recorded after the first step, are missing."
            )
            return
        if twice := in_several(held.values()):
            yield self._two_copies(facts, twice)
        if answer("plugin-network", facts) and several_hosts(facts):
            without = union(held.values()) & ~union(_held(facts, _PLUGIN).values())
            if without:
                yield self._no_plugin(facts, without)

    def _two_copies(self, facts: EnvironmentFacts, ranks: RankSet) -> Finding:
        return self.meta.finding(
            Status.FAIL,
            f"{capitalised(named_ranks(ranks))} loaded two copies of the library.",
            severity=Severity.MEDIUM,
            cause="One came with torch, another is in LD_LIBRARY_PATH or LD_PRELOAD.",
            action=(
                "Remove the unintended copy from LD_LIBRARY_PATH; torch.cuda.nccl.version() shows "
                "which one torch uses."
            ),
            ranks=ranks_of(ranks),
            evidence=(_table(facts),),
            confidence="medium",
        )

    def _no_plugin(self, facts: EnvironmentFacts, ranks: RankSet) -> Finding:
        networks = " and ".join(sorted(links(facts) & {"efa", "slingshot"}))
        return self.meta.finding(
            Status.FAIL,
            f"{capitalised(named_ranks(ranks))} loaded no network plugin, although the "
            f"hosts have {networks}.",
            severity=Severity.CRITICAL,
            cause="The plugin (aws-ofi-nccl) is not installed, or not in LD_LIBRARY_PATH: NCCL "
            "connects the hosts by TCP.",
            fix="Install the plugin aws-ofi-nccl",
            action="Install aws-ofi-nccl, put its folder into LD_LIBRARY_PATH, and set NCCL_NET to "
            "the plugin's network, so that its absence stops the run.",
            ranks=ranks_of(ranks),
            evidence=(_table(facts),),
            confidence="medium",
        )


def _held(facts: EnvironmentFacts, pattern: re.Pattern[str]) -> dict[str, RankSet]:
    """Return the loaded libraries of a kind, each with its ranks."""
    found = {path: union(ranks.values()) for path, ranks in facts.libraries.items()}
    return {path: ranks for path, ranks in found.items() if pattern.search(path)}


def _table(facts: EnvironmentFacts) -> Table:
    rows = _held(facts, re.compile("")).items()
    columns = (Column("library"), Column("ranks"))
    return Table(columns, tuple((path, written_ranks(ranks)) for path, ranks in sorted(rows)))
