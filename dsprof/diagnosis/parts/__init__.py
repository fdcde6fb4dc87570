"""The parts of a diagnosis: what each part of the page shows."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def filled(kind: type[S], *sources: object, **told: Any) -> S:
    """Return a part with the fields that `sources` have by the same name, and those told beside."""
    for name in kind.__struct_fields__:
        for source in sources:
            if name not in told and hasattr(source, name):
                told[name] = getattr(source, name)
    return kind(**told)
