"""Which values DeepSpeed takes for a key: `values.csv`.

`takes` lists alternatives: forms of `_FORMS`, a range such as 0..1 of numbers (of others the kind
of the key tells), or words, which count in any case where "any case" is added. "list of" such words
is a list that holds no others. DeepSpeed looks at a key with a `switch` only where that key is on,
and with `since` from that release on. What pydantic takes for a switch or a number is in `fits`.

Schedulers and their parameters were read in the sources of DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from dsprof.files.tables import rows
from dsprof.rules.knowledge.releases import Release, release

DTYPES: Mapping[str, tuple[str, ...]] = {
    "fp16": ("torch.float16", "fp16", "float16", "half"),
    "fp32": ("torch.float32", "fp32", "float32", "float"),
    "int8": ("torch.int8", "int8"),
    "bf16": ("torch.bfloat16", "bf16", "bfloat16"),
}
"""DeepSpeed's names of dtypes."""

_DTYPES = frozenset(name for names in DTYPES.values() for name in names)
_LIST = "list of "
_FORMS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "object": (lambda value: isinstance(value, Mapping), "an object"),
    "list": (lambda value: isinstance(value, list), "a list"),
    "text": (lambda value: isinstance(value, str), "text"),
    "null": (lambda value: value is None, "null"),
    "stage": (lambda value: value is not None, "0, 1, 2 or 3"),  # refused.csv has other values
    "name": (lambda value: isinstance(value, str) and value != "", "a name"),
    "number": (lambda value: isinstance(value, (int, float)), "a number"),
    "size": (lambda value: isinstance(value, (int, float)) and value > 0, "a number above 0"),
    "whole": (lambda value: isinstance(value, int), "a whole number"),
    "amount": (lambda value: isinstance(value, int) and value >= 0, "a whole number from 0 on"),
    "level": (lambda value: isinstance(value, (int, float)) and value >= 1, "at least 1"),
    "count": (lambda value: isinstance(value, int) and value > 0, "a whole number above 0"),
    "share": (lambda value: not isinstance(value, (int, float)) or 0 < value < 1, "within 0 and 1"),
    "no switch": (lambda value: not isinstance(value, bool), "a number"),
    "something": (bool, "set"),
    "empty": (lambda value: not value, "empty"),
    "switch": (lambda value: isinstance(value, int), "true or false"),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
    "attribute": (
        lambda value: isinstance(value, str) and value != "" and "." not in value,
        "the name of an attribute, without dots",
    ),
    "dtype": (lambda value: isinstance(value, str) and value in _DTYPES, "fp32, fp16 or bf16"),
}


class Taken(NamedTuple):
    """The values that DeepSpeed takes for a key, and when it looks at them."""

    forms: tuple[str, ...]
    switch: str  # the key that must be on; "" for always
    since: Release


def not_taken(path: str, value: Any) -> str:
    """Return what a value must be where DeepSpeed does not take it, else ""."""
    taken = takes().get(path)
    if not taken or any(_fits(form, value) for form in taken.forms):
        return ""
    return f"must be {' or '.join(map(_in_words, taken.forms))}"


def _fits(form: str, value: Any) -> bool:
    if form in _FORMS:
        return _FORMS[form][0](value)
    if ".." in form:
        return _is_within(form, value)
    if form.startswith(_LIST):
        return isinstance(value, list) and all(_fits(form[len(_LIST) :], one) for one in value)
    words, _, case = form.partition(", ")
    return isinstance(value, str) and (value.lower() if case else value) in words.split("|")


def _is_within(form: str, value: Any) -> bool:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return True
    low, _, high = form.partition("..")
    return float(low) <= number <= float(high or "inf")


def _in_words(form: str) -> str:
    if form in _FORMS:
        return _FORMS[form][1]
    if form.startswith(_LIST):
        return f"a list of {', '.join(form[len(_LIST) :].split('|'))}"
    if ".." in form:
        low, _, high = form.partition("..")
        return f"between {low} and {high}" if high else f"at least {low}"
    return f"one of {', '.join(form.partition(', ')[0].split('|'))}"


@cache
def takes() -> Mapping[str, Taken]:
    """Return what is taken for each key."""
    return {
        row["key"]: Taken(
            tuple(row["takes"].split(" or ")), row["switch"], release(row["since"]) or ()
        )
        for row in rows("rules/knowledge/deepspeed/values.csv")
    }


_WARMUP = ("warmup_num_steps", "warmup_type", "last_batch_iteration")
_RATES = ("warmup_min_lr", "warmup_max_lr")

SCHEDULERS: Mapping[str, frozenset[str]] = {
    "WarmupLR": frozenset((*_WARMUP, *_RATES)),
    "WarmupDecayLR": frozenset((*_WARMUP, *_RATES, "total_num_steps")),
    "WarmupCosineLR": frozenset((*_WARMUP, "total_num_steps", "warmup_min_ratio", "cos_min_ratio")),
    "OneCycle": frozenset(
        ("cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "decay_step_size", "decay_mom_rate")
        + ("cycle_first_step_size", "cycle_second_step_size", "cycle_first_stair_count")
        + ("cycle_second_stair_count", "cycle_momentum", "cycle_min_mom", "cycle_max_mom")
        + ("last_batch_iteration",)
    ),
    "LRRangeTest": frozenset(
        ("lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate")
        + ("lr_range_test_staircase", "last_batch_iteration")
    ),
}


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
