"""Words on variables whose values were not written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.files.redaction import REDACTED
from dsprof.findings.finding import Finding
from dsprof.rules.rule import RuleMeta


def unknown_values(
    meta: RuleMeta, facts: EnvironmentFacts, names: Iterable[str]
) -> Iterator[Finding]:
    """Yield a finding that names those of `names` whose value is redacted, if any is."""
    hidden = [name for name in names if REDACTED in facts.variables.get(name, ())]
    if hidden:
        yield meta.unknown(f"Unknown: the value of {', '.join(hidden)} was redacted.")
