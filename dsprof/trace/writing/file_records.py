"""Turns records of hooks into those of the file: times since its start, and no live fields."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, get_args, get_type_hints

from msgspec import NODEFAULT
from msgspec.structs import fields

from dsprof.trace.schema import Mark


@cache  # at the first record of a kind: type hints take 0.2 ms
def in_file(kind: type[Any]) -> Callable[[Any, int], Any]:
    """Return what makes a record of the file of one of `kind`, and of the start of the trace.

    What a hook may still hold is made anew. It is compiled, as those of a namedtuple are: a loop
    over the fields takes three times as long, for each line.
    """
    marks = {
        name: get_args(hint) for name, hint in get_type_hints(kind, include_extras=True).items()
    }
    if not any(Mark.INSTANT in of or Mark.LIVE in of for of in marks.values()):
        return _as_it_is
    known = {one.name: one.default for one in fields(kind)} | {"_made": kind}
    values = ", ".join(_value(name, of, known[name]) for name, of in marks.items())
    # Given as text, eval() would make a process that Ctrl-C ends exit with 1.
    source = compile(f"lambda given, start_ns: _made({values})", __name__, "eval")
    make: Callable[[Any, int], Any] = eval(source, known)  # noqa: S307 - names of the schema only
    return make


def _value(name: str, marks: tuple[Any, ...], default: Any) -> str:
    """Return what a field is in the file; a moment that may be 0 was not seen then."""
    if Mark.LIVE in marks:
        return name  # its default
    given = f"given.{name}"
    if Mark.INSTANT not in marks:
        return given
    return f"{given} - start_ns" if default is NODEFAULT else f"{given} and {given} - start_ns"


def _as_it_is(record: Any, start_ns: int) -> Any:
    return record
