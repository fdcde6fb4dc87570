"""Lines for a terminal: wrapped, painted, laid out as tables, and safe to print."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Table
from dsprof.reports.base import Format, Options, Shown

DEFAULT_WIDTH = 96
LEAST_WIDTH = 60
_INDENT, _GAP = "  ", "  "


class Page:
    """Wraps and paints lines for one terminal."""

    def __init__(self, width: int, colour: bool) -> None:
        self.width = width
        self._colour = colour

    def document(self, sections: Iterable[Iterable[str]]) -> bytes:
        """Return sections as UTF-8, an empty line between them."""
        lines = [line for section in sections for line in [*section, ""]]
        return ("\n".join(lines).rstrip() + "\n").encode()

    def wrap(self, text: str, indent: str = "", label: str = "") -> list[str]:
        """Wrap text from a trace or from us, the label before it."""
        rest = " " * len(indent) + ("  " if label else "")
        return self._wrapped(label + printable(text), indent, rest)

    def entry(self, numbers: str, text: str) -> list[str]:
        """Wrap text from a trace behind the numbers that it names, in a column of its own."""
        rest = " " * (len(numbers) + 2)
        return self._wrapped(printable(text), numbers, rest) or [numbers.rstrip()]

    def _wrapped(self, text: str, first: str, rest: str) -> list[str]:
        # Names of rules, files and operations are whole, to be copied.
        lines = textwrap.wrap(
            fmt.unbroken(text),
            self.width,
            initial_indent=first,
            subsequent_indent=rest,
            break_on_hyphens=False,
        )
        return [line.replace(fmt.NO_BREAK, " ") for line in lines]

    def paint(self, text: str, code: str) -> str:
        """Colour a string of ours."""
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text

    def heading(self, text: str) -> str:
        """A section's first line."""
        return self.paint(text.upper(), "1")

    @staticmethod
    def more(left: int, noun: str) -> list[str]:
        """Say how many were left out at the end of a list, if any were."""
        return [f"{_INDENT}and {fmt.plural(left, f'more {noun}')}"] if left > 0 else []

    def table(self, table: Table) -> Iterator[str]:
        """Lay out a table; the last column of text takes the width that is left, and wraps."""
        kinds = [column.kind for column in table.columns]
        cells = [[column.label for column in table.columns]]
        cells += [
            [printable(fmt.cell(value, kind)) for value, kind in zip(row, kinds, strict=True)]
            for row in table.rows
        ]
        widths = self._widths(cells)
        for row in cells:
            columns = [
                textwrap.wrap(cell, width, break_on_hyphens=False) or [""]
                for cell, width in zip(row, widths, strict=True)
            ]
            for number in range(max(map(len, columns))):
                line = [column[number] if number < len(column) else "" for column in columns]
                aligned = [
                    f"{text:<{width}}" if kind == "text" else f"{text:>{width}}"
                    for text, width, kind in zip(line, widths, kinds, strict=True)
                ]
                yield (_INDENT + _GAP.join(aligned)).rstrip()

    def _widths(self, cells: Sequence[Sequence[str]]) -> list[int]:
        """Return the width of each column; the widest gives way until the line fits.

        Words are cut only where they do not fit whole.
        """
        columns = [*zip(*cells, strict=True)]
        widths = [max(map(len, column), default=1) or 1 for column in columns]
        words = [
            max((len(word) for cell in column for word in cell.split()), default=1)
            for column in columns
        ]
        room = self.width - len(_INDENT) - len(_GAP) * (len(widths) - 1)
        least = words if sum(words) <= room else [1] * len(words)
        while sum(widths) > room:
            wide = [at for at, width in enumerate(widths) if width > least[at]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
        return widths


def in_text(sections: Callable[[Shown, Page], Iterable[list[str]]]) -> Format[Shown]:
    """Return the format that writes these sections as UTF-8 text, wrapped as the options wish."""

    def render(shown: Shown, options: Options) -> bytes:
        page = Page(max(options.width or DEFAULT_WIDTH, LEAST_WIDTH), options.colour)
        return page.document(sections(shown, page))

    return Format("text", ".txt", render)


def printable(text: str) -> str:
    """Replace what is no letter, sign or blank: a name in a trace must not steer the terminal."""
    return "".join(
        "?" if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") else char
        for char in text.replace("\n", " ").replace("\t", " ")
    )
