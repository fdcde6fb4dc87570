"""Collectives by which a program itself sends a few numbers or an object."""

from __future__ import annotations

from dsprof.analysis.aggregates.communication import Kind
from dsprof.analysis.collectives import SIZE_CLASSES
from dsprof.trace.collectives import family

_FAMILIES = frozenset({"all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter"})
_SCALAR = SIZE_CLASSES[0]
_OBJECT_SIZES = SIZE_CLASSES[:3]
_MODEL_ROLES = frozenset({"tensor", "pipeline", "model", "sequence", "context", "expert"})
"""Collectives of these groups outside forward and backward hand out a batch, by design."""


def is_scalar(kind: Kind) -> bool:
    """Say whether a program asked for this by itself, to send a few numbers or an object."""
    own = kind.phase == "" and kind.group_size > 1 and kind.role not in _MODEL_ROLES
    is_small = kind.size_class == _SCALAR or (is_object(kind) and kind.size_class in _OBJECT_SIZES)
    return own and is_small and family(kind.op) in _FAMILIES


def is_object(kind: Kind) -> bool:
    """Say whether it carries pickled bytes.

    DeepSpeed also sends parameters as bytes, and pickled bytes are never added up.
    """
    are_bytes = kind.dtype == "uint8" and family(kind.op) not in ("all_reduce", "reduce")
    return "object" in kind.requested or (are_bytes and not kind.requested)
