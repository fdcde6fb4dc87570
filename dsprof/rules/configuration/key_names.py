"""What becomes of a key that DeepSpeed does not know, and which one was meant."""

from __future__ import annotations

from difflib import get_close_matches

from dsprof.rules.knowledge.deepspeed import (
    ZERO,
    Fate,
    fate_of_unknown,
    keys,
    known_keys,
    section_of,
)
from dsprof.rules.knowledge.releases import Release


def fate_of(path: str, release: Release) -> Fate | None:
    """Return what becomes of a key that its section does not know; None if it knows it."""
    section, name = section_of(path), path.rpartition(".")[2]
    if name in known_keys(section, release):
        return None
    return fate_of_unknown(section, release)


def meant_by(path: str, release: Release, similarity: float) -> str:
    """Return words for the key that was meant, or for where it belongs; "" if none is like it."""
    section, name = section_of(path), path.rpartition(".")[2]
    if (place := _place(name, release)) is not None and name not in path.split(".")[:-1]:
        return f"belongs under {place}" if place else "belongs at the top level"
    known = list(known_keys(section, release))
    near = get_close_matches(name, known, n=1, cutoff=similarity)
    return f"did you mean {near[0]}?" if near else ""


def _place(name: str, release: Release) -> str | None:
    """Return the section of a key that was put elsewhere; None if there is none, or several."""
    places = {
        section_of(path)
        for path, key in keys().items()
        if path.rpartition(".")[2] == name and release > key.not_in
    }
    if ZERO in places:
        return ZERO
    return places.pop() if len(places) == 1 else None
