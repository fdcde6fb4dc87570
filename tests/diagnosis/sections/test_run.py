from __future__ import annotations

from dsprof.diagnosis.sections.run import rule_infos
from dsprof.findings.finding import Status
from dsprof.rules import RULES


def test_rules_that_found_something_carry_the_page_that_explains_them():
    failed, passed = (
        rule.meta.finding(status, "It is so.")
        for rule, status in zip(RULES[:2], (Status.FAIL, Status.PASS), strict=True)
    )
    first, second = rule_infos(RULES[:2], [failed, passed])
    assert first.page.startswith(f"# {first.rule}\n")
    assert "\n## What to do\n" in first.page
    assert second.page == ""
