"""Every rule has its page, all pages have one shape, and what they take from code is so there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from dsprof.findings.glossary import GLOSSARY
from dsprof.rules import RULES
from dsprof.rules.knowledge.deepspeed.keys import keys
from dsprof.rules.rule import Rule
from tests.pages import CATEGORIES, COMMAND, DOCS, ROOT, stale, threshold_table

PAGES = DOCS / "rules"
SECTIONS = (
    "What it means",
    "How it is found",
    "What it costs",
    "What to do",
    "When it is wrong",
    "Thresholds",
)


def page_of(rule: Rule) -> str:
    return (PAGES / f"{rule.meta.id}.md").read_text()


def sections_of(page: str) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_a_page_has_the_shape_of_all(subtests: pytest.Subtests) -> None:
    for rule in RULES:
        with subtests.test(rule.meta.id):
            page = page_of(rule)
            assert re.match(rf"# {rule.meta.id}\n\n[^#\n]+\.\n\n## ", page), (
                "id, one sentence, sections"
            )
            assert tuple(sections_of(page)) == SECTIONS
            assert all(text.strip() for text in sections_of(page).values())


def test_a_page_says_what_to_do_by_an_example(subtests: pytest.Subtests) -> None:
    for rule in RULES:
        with subtests.test(rule.meta.id):
            assert re.search(
                r"^```\w*\n.+?^```$", sections_of(page_of(rule))["What to do"], re.S | re.M
            )


def test_a_page_says_what_each_verdict_needs(subtests: pytest.Subtests) -> None:
    for rule in RULES:
        with subtests.test(rule.meta.id):
            found = sections_of(page_of(rule))["How it is found"]
            assert re.search(r"\*\*(Fail|Info|info)\*\*|\| verdict", found)


def test_examples_of_configurations_hold_keys_that_deepspeed_reads(
    subtests: pytest.Subtests,
) -> None:
    for rule in RULES:
        with subtests.test(rule.meta.id):
            for example in re.findall(r"^```json\n(.+?)^```$", page_of(rule), re.S | re.M):
                paths = dict(_paths(json.loads(example)))
                assert paths.keys() <= keys().keys(), example


def _paths(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{key}.")


def test_a_page_says_on_which_backends_the_rule_holds(subtests: pytest.Subtests) -> None:
    for rule in RULES:
        with subtests.test(rule.meta.id):
            found = sections_of(page_of(rule))["How it is found"]
            assert len(re.findall(r"^Backends: .+\.$", found, re.MULTILINE)) == 1


def test_thresholds_are_those_of_the_rule_and_explained(subtests: pytest.Subtests) -> None:
    for rule in RULES:
        with subtests.test(rule.meta.id):
            section = sections_of(page_of(rule))["Thresholds"]
            rows = dict(re.findall(r"^\| `(\w+)` \|[^|]+\| (.+) \|$", section, re.MULTILINE))
            assert list(rows) == [one.name for one in fields(rule.thresholds)], f"run `{COMMAND}`"
            assert section.strip() == threshold_table(rule, rows).strip(), f"run `{COMMAND}`"


def test_what_pages_take_from_code_is_up_to_date() -> None:
    assert stale() == [], f"run `{COMMAND}`"


def test_the_list_has_every_rule_once() -> None:
    listed = re.findall(r"^\| \[([a-z0-9-]+)\]\(\1\.md\)", (PAGES / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(rule.meta.id for rule in RULES)
    assert {rule.meta.category for rule in RULES} == set(CATEGORIES)


def test_no_page_is_of_a_rule_that_is_gone() -> None:
    pages = {path.stem for path in PAGES.glob("*.md")} - {"README"}
    assert pages == {rule.meta.id for rule in RULES}


def test_the_readme_counts_them() -> None:
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"some of (\d+): \[all rules\]", readme) == [str(len(RULES))]


def links() -> Iterator[tuple[str, str, str]]:
    """Yield each link of the docs to a file: where it stands, the file, the heading or ""."""
    for page in (*DOCS.rglob("*.md"), *ROOT.glob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if ":" not in target:
                path, _, anchor = target.partition("#")
                yield str(page.relative_to(ROOT)), path and str(page.parent / path), anchor


def test_links_lead_to_files_and_headings(subtests: pytest.Subtests) -> None:
    for page in sorted({page for page, *_ in links()}):
        with subtests.test(page):
            for _, path, anchor in (link for link in links() if link[0] == page):
                target = ROOT / (path or page)
                assert target.exists(), path
                if anchor:
                    headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
                    assert anchor in {_anchor(one) for one in headings}, f"{path}#{anchor}"


def test_files_that_pages_name_exist(subtests: pytest.Subtests) -> None:
    for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]:
        with subtests.test(page.name):
            named = re.findall(
                r"`((?:dsprof|hooks|reports|tests|benchmarks|examples)/[\w./-]+\.[a-z]+)(?=`|::)",
                page.read_text(),
            )
            assert [path for path in named if not (ROOT / path).exists()] == []


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\s-]", "", heading.lower())
    return kept.replace(" ", "-")


def test_terms_are_explained_in_one_or_two_sentences() -> None:
    for name, term in GLOSSARY.items():
        assert 1 <= len(re.findall(r"\.(?=\s|$)", term.meaning)) <= 3, name
        assert term.meaning.endswith("."), name
