"""Every finding that a test of a rule makes must fit a headline, and be in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest

from dsprof.findings import brief
from dsprof.findings.finding import Finding, Status
from dsprof.rules import all_rules

LONGEST = 120
"""Characters of one line at 1,440 px."""

_NOUNS = "ranks|steps|groups|hosts|nodes|files|calls|collectives|buckets|times|dimensions"
_SLIP = re.compile(rf"(?<!ank )(?<![\w.,:/=-])1 ({_NOUNS})\b| [.,;](?=\s|$)|[^.?!]$")
"""One of several, a name that is missing before a mark, or no mark at the end."""


def headline(finding: Finding) -> str:
    """Return the line that a report would begin with, without marks that no reader sees."""
    share = (0.151, 0.251) if finding.saving_ms_per_step else None
    short = {"problem": brief.problem(finding), "fix": brief.fix(finding), "saving_share": share}
    return brief.line(msgspec.structs.replace(finding, **short)).replace("`", "")


def slips(finding: Finding) -> list[str]:
    """Return the texts of a finding that are no sentences."""
    texts = (finding.summary, finding.cause, finding.action)
    return [text for text in texts if _SLIP.search(text)]


@pytest.fixture(autouse=True)
def _findings_read_well(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    too_long: list[str] = []
    slipped: list[str] = []

    def observed(check: Any) -> Any:
        def wrapped(*arguments: Any) -> Iterable[Finding]:
            found = check(*arguments)
            findings = [found] if isinstance(found, Finding) else list(found)
            failed = [headline(one) for one in findings if one.status is Status.FAIL]
            too_long.extend(line for line in failed if len(line) > LONGEST)
            slipped.extend(text for one in findings for text in slips(one))
            return findings

        return wrapped

    for kind in {type(rule) for rule in all_rules()}:
        monkeypatch.setattr(kind, "check", observed(kind.check))
    yield
    assert (too_long, slipped) == ([], [])
