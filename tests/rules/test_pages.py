"""Every rule has its page, and stands in the list of all rules under its category."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dsprof.rules import RULES
from dsprof.rules.rule import Rule

PAGES = Path(__file__).parents[2] / "docs" / "rules"
SECTIONS = {
    "configuration": "DeepSpeed's configuration",
    "quality": "Quality of the record",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
def test_a_rule_has_a_page_and_a_line(rule: Rule) -> None:
    meta = rule.meta
    assert (PAGES / f"{meta.id}.md").read_text().startswith(f"# {meta.id}\n")
    heading = SECTIONS.get(meta.category, meta.category.capitalize())
    section = (PAGES / "README.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    assert f"| [{meta.id}]({meta.id}.md) | " in section


def test_no_page_is_of_a_rule_that_is_gone() -> None:
    pages = {path.stem for path in PAGES.glob("*.md")} - {"README"}
    assert pages == {rule.meta.id for rule in RULES}


def test_the_readme_counts_them() -> None:
    readme = (PAGES.parents[1] / "README.md").read_text()
    assert re.findall(r"some of (\d+): \[all rules\]", readme) == [str(len(RULES))]


def test_pages_link_to_files_that_are_there() -> None:
    for page in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+\.md)", page.read_text()):
            assert (PAGES / target).is_file(), f"{page.name}: {target}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
def test_a_page_says_on_which_backends_the_rule_holds(rule: Rule) -> None:
    text = (PAGES / f"{rule.meta.id}.md").read_text()
    assert re.search(r"## Backends\n\S|\bit holds (for|on) ", text, re.IGNORECASE)
