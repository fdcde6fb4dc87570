"""DeepSpeed's configuration: its keys, the fate of others, and since which release.

keys.csv         keys that DeepSpeed reads. `kind`: bool, int or float where it insists; "?" where
                 it may be null. `not_in`: the last release read that lacks the key. `stages`: ZeRO
                 stages at which it has an effect; blank is all of them, "-" none. `loses`: what
                 somebody misses who set it at another stage.
sections.csv     what becomes of an unknown key in a section: ignored or refused (before
                 `strict_since`: ignored). Sections that are not listed may hold any key.
retired.csv      keys that never were or are no more, and what to do instead
defaults.csv     values of keys that are not written, where a rule asks for them: JSON or a word;
                 blank where there is none, or the program brings its own
filled_keys.txt  keys whose "auto" transformers or accelerate replace
open_keys.txt    usual keys of sections in which DeepSpeed takes any key; only
                 `dsprof.files.redaction.known_settings` reads it, to write their values

Read in the sources of 0.12.6 and the last releases of 0.13 to 0.19; the newest is `NEWEST`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

from dsprof.files.tables import lines, rows
from dsprof.rules.knowledge.releases import Release, release

_TABLES = "rules/knowledge/deepspeed/"

NEWEST: Release = (0, 19, 8)
ZERO = "zero_optimization"

AUTO = "auto"
_OWN_AUTO = (f"{ZERO}.zenflow.", "expert_parallel.", "pipeline.", "data_types.keep_in_fp32_modules")
"""Where DeepSpeed means "auto" itself."""

Fate = Literal["ignored", "refused", "deprecated"]
AutoFate = Literal["filled", "own", "default", "kept"]


class Key(NamedTuple):
    """A key that DeepSpeed reads."""

    kind: str
    not_in: Release  # the last release read that lacks it; () where all have it
    stages: frozenset[int] | None  # at which it has an effect; None: whatever the stage
    loses: str


class Retired(NamedTuple):
    """A key that has no effect, or that stops the engine."""

    fate: Fate
    since: Release  # () where no release ever took it
    instead: str


def section_of(path: str) -> str:
    """Return the section of a dotted key; "" is the top level."""
    return path.rpartition(".")[0]


@cache
def keys() -> Mapping[str, Key]:
    """Return what is known of each dotted key."""
    return {
        ".".join(filter(None, (row["section"], row["key"]))): Key(
            row["kind"], release(row["not_in"]) or (), _stages(row["stages"]), row["loses"]
        )
        for row in rows(_TABLES + "keys.csv")
    }


@cache
def defaults() -> Mapping[str, Any]:
    """Return the values of dotted keys that are not written."""
    return {row["key"]: _value(row["default"]) for row in rows(_TABLES + "defaults.csv")}


def _value(text: str) -> Any:
    with suppress(ValueError):
        return json.loads(text)
    return text


@cache
def retired() -> Mapping[str, Retired]:
    """Return the keys that DeepSpeed ignores, refuses or calls deprecated, by dotted key."""
    return {
        row["key"]: Retired(row["fate"], release(row["since"]) or (), row["instead"])  # type: ignore[arg-type]
        for row in rows(_TABLES + "retired.csv")
    }


@lru_cache(maxsize=256)  # a configuration may have any number of sections
def known_keys(section: str, of: Release) -> frozenset[str]:
    """Return the keys of a section that a release reads, or may read, without the section."""
    return frozenset(
        path.rpartition(".")[2]
        for path, key in keys().items()
        if section_of(path) == section and of > key.not_in
    )


@cache
def places() -> Mapping[str, Sequence[str]]:
    """Return the dotted keys by what they are called in their sections."""
    found = defaultdict(list)
    for path in keys():
        found[path.rpartition(".")[2]].append(path)
    return found


def fate_of_unknown(section: str, of: Release) -> Fate | None:
    """Return what a release does with a key that it does not know; None: it may be anything."""
    row = _sections().get(section)
    if row is None:
        return None
    since = release(row["strict_since"]) or ()
    return "refused" if row["unknown"] == "refused" and of >= since else "ignored"


def fate_of_retired(path: str, of: Release) -> Fate | None:
    """Return what a release does with a retired key; None where it is none, or not yet."""
    key = retired().get(path)
    return key.fate if key and of >= key.since else None


def fate_of_auto(path: str, of: Release) -> AutoFate:
    """Return what becomes of "auto" as the value of a key.

    transformers or accelerate have it filled in, DeepSpeed has its own meaning for it, drops it in
    favour of the default (in strict sections), or keeps it as a text like any other.
    """
    if path in _filled():
        return "filled"
    if path.startswith(_OWN_AUTO):
        return "own"
    return "default" if fate_of_unknown(section_of(path), of) == "refused" else "kept"


def sections() -> Iterator[str]:
    """Yield the known sections at the top level."""
    return (name for name in _sections() if name and "." not in name)


@cache
def _sections() -> Mapping[str, Mapping[str, str]]:
    return {row["section"]: row for row in rows(_TABLES + "sections.csv")}


def _stages(text: str) -> frozenset[int] | None:
    return frozenset(map(int, text.replace("-", ""))) if text else None


@cache
def _filled() -> frozenset[str]:
    return frozenset(lines(_TABLES + "filled_keys.txt"))
