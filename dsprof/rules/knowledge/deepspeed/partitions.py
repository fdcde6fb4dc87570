"""Errors of tensor_parallel.partition_config that AutoTP refuses before it looks at a model.

Read in the sources of DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dsprof.findings.wording import plural

PARTITION_CONFIG = "tensor_parallel.partition_config"
_SPECS = f"{PARTITION_CONFIG}.layer_specs"
_TYPES = ("column", "row", "skip")


def mistakes(config: Any) -> Iterator[tuple[str, str]]:
    """Yield the key that is wrong and what it must be."""
    specs = config.get("layer_specs", []) if isinstance(config, Mapping) else []
    if specs in ("", {}):
        return
    if not isinstance(specs, list):
        yield _SPECS, "must be a list of objects"
        return
    for number, spec in enumerate(specs, 1):
        if must := _mistake(spec):
            yield _SPECS, f"entry {number}: {must}"


def _mistake(spec: Any) -> str:
    if not isinstance(spec, Mapping):
        return "must be an object"
    kind = spec.get("partition_type", _TYPES[0])
    if isinstance(kind, str) and kind.lower() not in _TYPES:
        return f"partition_type must be one of {', '.join(_TYPES)}"
    if (shape := spec.get("shape")) is None:
        return ""
    if not isinstance(shape, list):
        return "shape must be a list"
    is_column = isinstance(kind, str) and kind.lower() == _TYPES[0]
    dim = spec.get("partition_dim")
    return _mistake_of_shape(shape, (0 if is_column else 1) if dim is None else dim)


def _mistake_of_shape(shape: Sequence[Any], dim: Any) -> str:
    if not isinstance(dim, int) or not 0 <= dim < len(shape):
        known = plural(len(shape), "dimension")
        return f"partition_dim must be below {len(shape)}: shape has {known}, counted from 0"
    for at, size in enumerate(shape):
        if isinstance(size, list):
            parts = [part for part in size if isinstance(part, int) and part > 0]
            if at != dim or not size or parts != size:
                return "shape may hold a list of sizes above 0 at partition_dim, and nowhere else"
        elif not isinstance(size, int) or size == 0 or size < -1:
            return "the sizes of shape must be whole numbers above 0, or -1"
    return ""
