"""The tables of docs/reference/compatibility.md that `make compat` writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.beside import ROOT

PAGE = ROOT / "docs" / "reference" / "compatibility.md"
END = "<!-- end -->"


@dataclass(frozen=True)
class Part:
    """The lines between two marks of the page, and whether they say that all is well."""

    lines: Sequence[str]
    holds: bool


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]


def write(name: str, part: Part) -> None:
    """Replace what stands between the marks of `name`, and nothing else."""
    begin, page = f"<!-- {name}: written by make compat -->", PAGE.read_text()
    before, after = page.split(f"{begin}\n")
    after = after[after.index(END) :]
    PAGE.write_text("\n".join([f"{before}{begin}", *part.lines, after]))
