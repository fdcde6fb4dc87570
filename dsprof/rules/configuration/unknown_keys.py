"""Keys that DeepSpeed does not know: their effect, and the key that was meant."""

from __future__ import annotations

from functools import lru_cache

from dsprof.rules.knowledge.deepspeed.keys import (
    ZERO,
    Fate,
    fate_of_unknown,
    keys,
    known_keys,
    places,
    section_of,
)
from dsprof.rules.knowledge.near_names import NearNames
from dsprof.rules.knowledge.releases import Release

MONITORS = ("comet", "csv_monitor", "tensorboard", "wandb")
"""Sections for trackers: a key of one is never meant for another."""


def fate_of(path: str, release: Release) -> Fate | None:
    """Return what becomes of a key that its section does not know; None if it knows it."""
    section, name = section_of(path), path.rpartition(".")[2]
    if name in known_keys(section, release):
        return None
    return fate_of_unknown(section, release)


def meant_by(path: str, release: Release, similarity: float) -> str:
    """Return words for the key that was meant, or for where it belongs; "" if none is like it."""
    section, name = section_of(path), path.rpartition(".")[2]
    place = None if section in MONITORS else _place(name, release)
    if place is not None and name not in path.split(".")[:-1]:
        return f"belongs under {place}" if place else "belongs at the top level"
    near = _near_names(section, release).nearest(name, similarity)
    return f"did you mean {near}?" if near else ""


@lru_cache(maxsize=256)
def _near_names(section: str, release: Release) -> NearNames:
    return NearNames(known_keys(section, release))


def _place(name: str, release: Release) -> str | None:
    """Return the section of a key that was put elsewhere; None if there is none, or several."""
    paths = places().get(name, ())
    found = {section_of(path) for path in paths if release > keys()[path].not_in}
    if ZERO in found:
        return ZERO
    return found.pop() if len(found) == 1 else None
