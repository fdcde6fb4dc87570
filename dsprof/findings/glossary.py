"""The terms that reports use, explained: for docs/reference/glossary.md and for pages."""

from __future__ import annotations

from typing import NamedTuple

from dsprof.files.tables import rows


class Term(NamedTuple):
    """A term in one or two sentences, with the page that says more, relative to docs/."""

    meaning: str
    link: str


GLOSSARY = {row["term"]: Term(row["meaning"], row["link"]) for row in rows("findings/glossary.csv")}
"""The terms, by the names that sentences use."""


def meaning(label: str) -> str:
    """Explain the term that a heading names; empty where it names none."""
    term = GLOSSARY.get(label.lower())
    return term.meaning.replace("`", "") if term else ""
