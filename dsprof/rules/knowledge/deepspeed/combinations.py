"""Settings of DeepSpeed that mean something together, and which of them DeepSpeed refuses.

refused.csv lists what stops the engine at its construction. `when` holds conditions as
`when` of this module reads them; the first key is the one to change. `since` is the first release
that refuses it.

Read in the sources of DeepSpeed 0.19.8.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dsprof.files.tables import rows
from dsprof.findings.finding import Severity
from dsprof.rules.knowledge.deepspeed.values import DTYPES, SCHEDULERS, not_taken
from dsprof.rules.knowledge.releases import Release, release

_OPTIMIZERS = (
    *("adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon"),
    *("onebitadam", "onebitlamb", "zerooneadam"),  # known, and refused by another line
)

Condition = Callable[[Any], bool]
"""Judges the value in force; it is never called with an unknown value."""


@dataclass(frozen=True, slots=True)
class Combination:
    """A consequence where every condition of `when` holds; the first key is the one to change."""

    when: Mapping[str, Condition]
    says: str
    do: str
    severity: Severity = Severity.NONE  # NONE: informational
    since: Release = ()
    before: Release | None = None  # the first release of which it no longer holds
    config_patch: dict[str, Any] | None = None
    only_written: bool = False  # the first key must be in the configuration
    only_before: bool = False  # in a run, another rule judges by what was sent
    overlaps: bool = False  # what is to be done lets reductions overlap

    def concerns(self, of: Release) -> bool:
        """Whether it is so in a release."""
        return self.since <= of and (self.before is None or of < self.before)


def when(text: str) -> dict[str, Condition]:
    """Read conditions such as "stage: 1|2; overlap_comm: true; optimizer.type: !muon".

    A key without a section that has one belongs to zero_optimization if it begins with a dot.
    A value is JSON or a word in any case, `>N` a larger number, and a name in angle brackets one
    of `_NAMED`; "!" in front holds of all others.
    """
    parts = (part.partition(":") for part in text.split(";"))
    return {_path(key.strip()): _condition(values.strip()) for key, _, values in parts}


def _path(key: str) -> str:
    return f"zero_optimization{key}" if key.startswith(".") else key


def _condition(text: str) -> Condition:
    tests = [_test(word) for word in text.removeprefix("!").split("|")]
    is_other = text.startswith("!")
    return lambda value: any(test(value) for test in tests) is not is_other


def _test(word: str) -> Condition:
    if word in _NAMED:
        return _NAMED[word]
    if word.startswith(">"):
        return lambda value: _is_number(value) and value > float(word[1:])
    try:
        expected = json.loads(word)
    except ValueError:
        return lambda value: isinstance(value, str) and value.lower() == word
    return lambda value: bool(value == expected)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_no_optimizer(value: Any) -> bool:
    """Whether a name is of no class; one in capitals may be of a newer torch."""
    if not isinstance(value, str) or not value or value.lower() in _OPTIMIZERS:
        return not isinstance(value, str)
    return not value[0].isupper()


def _is_untested(value: Any) -> bool:
    """Whether ZeRO does not know an optimizer: Lamb, and torch's own but for three."""
    if not isinstance(value, str) or _is_no_optimizer(value):
        return False
    name = value.lower()
    return name in ("lamb", "musgd") or (name != "" and name not in _OPTIMIZERS)


def _is_no_scheduler(value: Any) -> bool:
    return not isinstance(value, str) or (value != "" and not value[0].isupper())


_NAMED: Mapping[str, Condition] = {
    "<object>": lambda value: isinstance(value, Mapping),
    "<odd>": lambda value: _is_number(value) and value % 2 != 0,
    "<on>": bool,
    "<set>": lambda value: True,
    "<not positive>": lambda value: _is_number(value) and value <= 0,
    "<whole>": lambda value: isinstance(value, int),
    **{f"<{dtype}>": names.__contains__ for dtype, names in DTYPES.items()},
    "<no optimizer>": _is_no_optimizer,
    "<untested optimizer>": _is_untested,
    "<no scheduler>": _is_no_scheduler,
    "<no dtype>": lambda value: not_taken("data_types.param_dtype", value) != "",
    "<scheduler of torch>": lambda value: bool(value) and str(value) not in SCHEDULERS,
    # Waiting for it costs something; "" is a device that is not known.
    "<accelerator>": lambda device: device.split(":", maxsplit=1)[0] != "cpu",
}


@cache
def refused() -> tuple[Combination, ...]:
    """Return what stops the engine at its construction."""
    return tuple(
        Combination(when(row["when"]), row["says"], row["do"], since=release(row["since"]) or ())
        for row in rows("rules/knowledge/deepspeed/refused.csv")
    )
