"""What pydantic takes for a switch or a number where a model of DeepSpeed asks for one."""

from __future__ import annotations

from typing import Any

WORDS = {"bool": "true or false", "int": "a whole number", "float": "a number"}

_OFF, _ON = ("0", "off", "f", "false", "n", "no"), ("1", "on", "t", "true", "y", "yes")
_SWITCHES = (*_OFF, *_ON)


def fits(value: Any, kind: str) -> bool:
    """Whether a value is taken for a kind: bool, int or float, with "?" if null is too."""
    if value is None:
        return kind.endswith("?")
    if isinstance(value, int):  # of any length, which no float is
        return value in (0, 1) or not kind.startswith("bool")
    number = _number(value)
    if kind.startswith("bool"):
        return number in (0, 1) or (isinstance(value, str) and value.lower() in _SWITCHES)
    if number is None or kind.startswith("float"):
        return number is not None
    is_written_whole = not isinstance(value, str) or "e" not in value.lower()
    return number % 1 == 0 and is_written_whole


def is_on(switch: Any) -> bool:
    """Return what a value that fits a bool switches."""
    is_word = isinstance(switch, str) and _number(switch) is None
    return switch.lower() in _ON if is_word else bool(float(switch))


def _number(value: Any) -> float | None:
    """Return a number, also one in quotes; None where it is none."""
    try:
        return float(value) if isinstance(value, (float, str)) else None
    except ValueError:
        return None
