"""hidden-setting: values in force that the environment of the process does not show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.rank_sets import union, written_ranks
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Cell, Column, Finding, Status, Table
from dsprof.findings.wording import plural, shortened, some
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta


class HiddenSetting(Rule):
    """Lists what configuration files of NCCL and RCCL, and C code, have set."""

    meta = RuleMeta(
        id="hidden-setting",
        title="No settings come from outside the environment",
        failing_title="Settings from outside the environment are in force",
        why="NCCL also reads /etc/nccl.conf and ~/.nccl.conf. No listing of the environment shows "
        "their settings, and they may differ between hosts.",
        category="environment",
        order=770,
        needs=(EnvironmentFacts,),
        needs_environment=True,
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report what files hold, and variables that changed when communication began."""
        facts = run[EnvironmentFacts]
        rows = [*_of_files(facts), *_of_code(facts)]
        if not rows:
            return
        shown = (f"{n}={shortened(str(v)) if v else '(unset)'}" for n, v, *_ in rows)
        names = some(list(dict.fromkeys(shown)), 4)
        yield self.meta.finding(
            Status.INFO,
            f"Files or the process itself set {plural(len(rows), 'variable')}: {names}.",
            action="Check that they are meant for this run; a variable of the process overrides a "
            "file.",
            evidence=(_table(rows),),
        )


def _of_files(facts: EnvironmentFacts) -> Iterator[tuple[Cell, ...]]:
    for (file, name), values in sorted(facts.files.items()):
        for value, ranks in sorted(values.items()):
            own = {v: r for v, r in facts.variables.get(name, {}).items() if v != value}
            note = f"overridden by {name}={min(own)}" if ranks & union(own.values()) else ""
            yield name, value, file, written_ranks(ranks), note


def _of_code(facts: EnvironmentFacts) -> Iterator[tuple[Cell, ...]]:
    listed = {name for _, name in facts.files}
    for name, values in sorted(facts.hidden.items()):
        for value, ranks in sorted(values.items()):
            if name not in listed:
                yield name, value, "set or cleared in the process", written_ranks(ranks), ""


def _table(rows: list[tuple[Cell, ...]]) -> Table:
    columns = ("variable", "value", "from", "ranks", "remark")
    return Table(tuple(map(Column, columns)), tuple(rows))
