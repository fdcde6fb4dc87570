"""Writes what follows from `dsprof.trace.schema`, where it has to be fast, typed or read by people.

    python -m dsprof.trace.generate

A test says when the files are older than the schema. Only a checkout has all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from dsprof.trace import schema
from dsprof.trace.schema import Collective, Mark

_HERE = Path(__file__).parent
_ROOT = _HERE.parent.parent
_BY = (
    '"""{what}\n\nWritten by `python -m dsprof.trace.generate`: edit `dsprof.trace.schema`.\n"""\n'
)
_COLUMNS = {str: "Codes", int: "IntArray", bool: "BoolArray"}


class Field(msgspec.Struct):
    """A field of a record as it was declared."""

    name: str
    type: Any
    marks: set[Mark]
    doc: str
    default: str  # as Python writes it, "" where a value must be given


def fields(record: type[Any]) -> Iterator[Field]:
    """Yield the fields of a record in their order."""
    hints = get_type_hints(record, include_extras=True)
    for one in msgspec.structs.fields(record):
        kind, *extras = get_args(hints[one.name])
        marks = {extra for extra in extras if isinstance(extra, Mark)}
        doc = next(reversed([extra for extra in extras if isinstance(extra, str)]), "")
        yield Field(one.name, kind, marks, doc, _default(one))


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return repr(field.default)
    factory: Any = field.default_factory
    return "" if factory is msgspec.NODEFAULT else repr(factory())


def structs() -> list[type[Any]]:
    """Return all records and their parts, in the order of the schema."""
    return [
        one
        for one in vars(schema).values()
        if isinstance(one, type) and issubclass(one, msgspec.Struct) and _is_ours(one)
    ]


def _is_ours(one: type[Any]) -> bool:
    return one.__module__ == schema.__name__


# -- columns.py -----------------------------------------------------------------------------------


def columns() -> str:
    """Return the source of the columns that a reader makes of collectives."""
    written = [one for one in fields(Collective) if Mark.LIVE not in one.marks]
    return "\n".join(
        [
            _BY.format(what="The columns of collectives; strings are codes into `words`."),
            "from __future__ import annotations\n",
            "import dataclasses\n",
            "import numpy as np",
            "import numpy.typing as npt\n",
            "IntArray = npt.NDArray[np.int64]",
            "BoolArray = npt.NDArray[np.bool_]",
            "Codes = IntArray\n\n",
            "@dataclasses.dataclass(slots=True)",
            "class Columns:",
            '    """One row per collective, in the order of the file."""\n',
            "    words: list[str]",
            "    op: Codes",
            *(f"    {one.name}: {_COLUMNS[one.type]}" for one in written),
            "\n\n_KINDS = {one.name: one.type for one in dataclasses.fields(Columns)[2:]}",
            *(
                f'{name} = [name for name, kind in _KINDS.items() if kind == "{kind}"]'
                for name, kind in zip(("WORDS", "NUMBERS", "FLAGS"), _COLUMNS.values(), strict=True)
            ),
            "",
        ]
    )


# -- docs/reference/trace-format.md ----------------------------------------------------------------


def page(text: str) -> str:
    """Return docs/reference/trace-format.md with tables of now between its marks."""
    for name, table in {"lines": _lines(), "records": _records()}.items():
        begin, end = f"<!-- {name}: written by dsprof.trace.generate -->\n", f"<!-- end {name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.split(end, 1)[1]}"
    return text


def _lines() -> str:
    rows = [f"| `{kind.cat}` | {_what(kind)} | {kind.when} |" for kind in schema.KINDS]
    return "\n".join(["| `cat` | what | when |", "| --- | --- | --- |", *rows, ""])


def _what(kind: schema.Kind) -> str:
    return kind.what or str(kind.record.__doc__).split("\n", 1)[0].rstrip(".")


def _records() -> str:
    cats: dict[Any, list[str]] = {}
    for kind in schema.KINDS:
        cats.setdefault(kind.record, []).append(f"`{kind.cat}`")
    return "\n".join(_record(one, cats.get(one, [])) for one in structs())


def _record(record: type[Any], cats: list[str]) -> str:
    of = f"{' and '.join(cats)}: " if cats else ""
    doc = " ".join((record.__doc__ or "").split())
    rows = [
        f"| `{one.name}` | {_type(one)} | {f'`{one.default}`' if one.default else ''} | {one.doc} |"
        for one in fields(record)
        if Mark.LIVE not in one.marks
    ]
    head = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([f"### {of}{record.__name__}", "", doc, "", *head, *rows, ""])


def _type(field: Field) -> str:
    unit = next((mark.value for mark in field.marks), "")
    return unit or _name(field.type).replace("|", "or")


def _name(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(map(_name, get_args(kind)))
    return str(kind) if get_args(kind) else "None" if kind is type(None) else str(kind.__name__)


def files() -> dict[Path, str]:
    """Return what each file should hold."""
    document = _ROOT / "docs" / "reference" / "trace-format.md"
    return {
        _HERE / "columns.py": columns(),
        document: page(document.read_text("utf-8")),
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, "utf-8")
