"""Writes what the docs take from code: `python -m tests.pages`; with `--check` it only compares.

Names and defaults of thresholds on the pages of rules (their meanings are written by hand), the
list of rules, their number in the README, and the glossary.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from os.path import relpath
from pathlib import Path

from dsprof.findings.glossary import GLOSSARY
from dsprof.rules import RULES
from dsprof.rules.rule import Rule

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COMMAND = "make docs"
BEGIN, END = f"<!-- written by {COMMAND} -->\n", "<!-- end -->\n"

CATEGORIES = {
    "communication": "Communication",
    "overlap": "Overlap",
    "steps": "Steps",
    "memory": "Memory",
    "configuration": "DeepSpeed's configuration",
    "environment": "Environment",
    "quality": "Quality of the record",
}
_HEAD = "| name | default | meaning |\n| --- | --- | --- |\n"


def threshold_table(rule: Rule, meanings: Mapping[str, str]) -> str:
    """Return the section on thresholds, with the meanings by name; missing ones are empty."""
    rows = [
        f"| `{one.name}` | {_shown(one.name, one.default)} | {meanings.get(one.name, '')} |\n"
        for one in fields(rule.thresholds)
    ]
    return _HEAD + "".join(rows) if rows else "None.\n"


def _shown(name: str, default: object) -> str:
    """Write a default as YAML takes it; sizes in a unit beside it."""
    if name.endswith("_bytes") and isinstance(default, int) and default >= 1 << 20:
        mib = default >> 20
        return f"{default} ({mib} MiB)" if mib < 1024 else f"{default} ({mib >> 10} GiB)"
    return str(default)


def _rule_page(page: str, rule: Rule) -> str:
    before, mark, section = page.partition("\n## Thresholds\n")
    meanings = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| (.*) \|$", section, re.MULTILINE))
    return f"{before}{mark}\n{threshold_table(rule, meanings)}" if mark else page


def _index(page: str) -> str:
    sections = [
        f"## {heading}\n\n| rule | reports |\n| --- | --- |\n"
        + "".join(
            f"| [{rule.meta.id}]({rule.meta.id}.md) | {rule.meta.failing_title} |\n"
            for rule in RULES
            if rule.meta.category == category
        )
        for category, heading in CATEGORIES.items()
    ]
    return _between_marks(page, "\n".join(sections))


def _glossary(page: str) -> str:
    terms = sorted(GLOSSARY.items(), key=lambda item: item[0].lower())
    return _between_marks(
        page, "\n".join(f"## {name}\n\n{term.meaning}{_link(term.link)}\n" for name, term in terms)
    )


def _link(target: str) -> str:
    return f" [More]({relpath(target, 'reference')})." if target else ""


def _between_marks(page: str, text: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


def _readme(page: str) -> str:
    return re.sub(r"(some of )\d+(: \[all rules\])", rf"\g<1>{len(RULES)}\2", page)


def written() -> Iterator[tuple[Path, str]]:
    """Yield each page that holds something written from code, as it should be."""
    for rule in RULES:
        path = DOCS / "rules" / f"{rule.meta.id}.md"
        yield path, _rule_page(path.read_text(), rule)
    for path, renew in (
        (DOCS / "rules" / "README.md", _index),
        (DOCS / "reference" / "glossary.md", _glossary),
        (ROOT / "README.md", _readme),
    ):
        yield path, renew(path.read_text())


def stale() -> list[str]:
    """Return the pages that `make docs` would change."""
    return [str(path.relative_to(ROOT)) for path, text in written() if path.read_text() != text]


def main() -> None:
    """Write the pages, or say which are stale."""
    if "--check" in sys.argv[1:]:
        if pages := stale():
            sys.exit(f"Stale: {', '.join(pages)}. Run `{COMMAND}`.")
        return
    for path, text in written():
        if path.read_text() != text:
            path.write_text(text)
            print(f"Wrote {path.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
