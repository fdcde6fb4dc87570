"""Settings: values with their places, checked against the fields of a dataclass."""

from __future__ import annotations

import dataclasses
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dsprof.errors import ConfigError

_MISTAKES_SHOWN = 20
_LONGEST = 40
"""Characters of a value that a message repeats as it is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it was set: "default", a variable, an option or `file:line:column`."""

    value: Any
    origin: str
    written: str = ""  # how it was written there, for messages


Bounds = tuple[float | None, float | None]
"""Least and largest value; None: any."""


def declared(field: dataclasses.Field[Any]) -> Bounds:
    """Return the bounds that a field carries in its metadata."""
    return field.metadata.get("minimum"), field.metadata.get("maximum")


def checked(
    settings: Mapping[str, Setting],
    schema: type,
    mistakes: list[str],
    bounds_of: Callable[[dataclasses.Field[Any]], Bounds] = declared,
) -> dict[str, Setting]:
    """Return the settings that fit the dataclass `schema`; the others become `mistakes`.

    Every key of `settings` must be a field of `schema`.
    """
    kinds = get_type_hints(schema)
    bounds = {field.name: bounds_of(field) for field in dataclasses.fields(schema)}
    fitting = {}
    for name, setting in settings.items():
        place = f"{setting.origin}: '{name}' must be"
        try:
            value = _fit(setting.value, kinds[name])
        except ValueError:
            got = f"got {_shown(setting.written)}{_nearest(setting.value, kinds[name])}"
            mistakes.append(f"{place} {_description(kinds[name])}, {got}")
            continue
        if beyond := _beyond(value, bounds[name]):
            mistakes.append(f"{place} {beyond}, got {_shown(setting.written)}")
            continue
        fitting[name] = dataclasses.replace(setting, value=value)
    return fitting


def raise_all(mistakes: list[str]) -> None:
    """Raise what was found wrong, if anything was.

    Raises:
        ConfigError: it lists all mistakes, up to a number that can be read.
    """
    if not mistakes:
        return
    left = len(mistakes) - _MISTAKES_SHOWN
    more = [f"and {left} more mistakes"] if left > 1 else mistakes[_MISTAKES_SHOWN:]
    raise ConfigError(*mistakes[:_MISTAKES_SHOWN], *more)


_HARMLESS = (
    r"[-+.:\d]{1,12}|[-+]?\.(?:nan|inf)|\d+e\d{1,3}|True|False|None|a (?:list|mapping)"
    r"|.*, which YAML.*"
)


def _shown(written: str) -> str:
    """Return a wrong value for a message: a number or a word of YAML; other text may be secret."""
    return written if re.fullmatch(_HARMLESS, written) else "other text"


def _nearest(value: Any, kind: Any) -> str:
    """Return the word that was probably meant; the wrong one may be secret."""
    from difflib import get_close_matches

    if get_origin(kind) is not Literal or not isinstance(value, str):
        return ""
    near = get_close_matches(value, get_args(kind), n=1)
    return f" - did you mean '{near[0]}'?" if near else ""


def in_one_line(text: str) -> str:
    """Return text as it is written, or escaped and cut if it would not fit a message.

    Credentials are removed first: a part of one would not be known as such.
    """
    if text.isprintable() and len(text) <= _LONGEST:
        return text
    from dsprof.files.redaction import redact_text  # which only errors need

    text = redact_text(text)
    return text if text.isprintable() and len(text) <= _LONGEST else reprlib.repr(text)[1:-1]


def did_you_mean(name: str, known: Iterable[str], listed_by: str = "") -> str:
    """Return the end of a message about an unknown `name`: the nearest known one, or all.

    Where they are many, `listed_by` is the command that lists them.
    """
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(name, names, n=1)
    if near:
        return f" - did you mean '{near[0]}'?"
    return f" (see {listed_by})" if listed_by else f"; known: {', '.join(names) or 'none'}"


def _beyond(value: Any, bounds: Bounds) -> str:
    """Return which bound a number exceeds, in words; "" if none."""
    low, high = bounds
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return ""
    if low is not None and value < low:
        return f"at least {low}"
    return f"at most {high}" if high is not None and value > high else ""


_DESCRIPTIONS = {
    bool: "true or false",
    int: "a whole number in plain digits",
    float: "a finite number",
    str: "text",
    NoneType: "null",
}


def _fit(value: Any, kind: Any) -> Any:
    """Return `value` as `kind`.

    Raises:
        ValueError: it is something else.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _fit_any(value, arguments)
    if origin is Literal and isinstance(value, str) and value in arguments:
        return value
    if origin in (list, tuple) and isinstance(value, (list, tuple)):
        return origin(_fit(item, arguments[0]) for item in value)
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    # Not isinstance: True is an int for Python, and not for people.
    if type(value) is kind and kind is not float:
        return value
    raise ValueError


def _fit_any(value: Any, kinds: Iterable[Any]) -> Any:
    """Return `value` as the first of `kinds` that it fits.

    Raises:
        ValueError: it fits none.
    """
    for kind in kinds:
        if kind is NoneType and value is None:
            return None
        with suppress(ValueError):
            return _fit(value, kind)
    raise ValueError


def _description(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(_description, arguments))
    if origin is Literal:
        return f"one of {', '.join(arguments)}" if len(arguments) > 1 else arguments[0]
    if origin in (list, tuple):
        return f"a list, each item {_description(arguments[0])}"
    return _DESCRIPTIONS[kind]


def without_none(kind: Any) -> Any:
    """Return `X` of `X | None`, and any other type as it is."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    return next(member for member in get_args(kind) if member is not NoneType)
