"""The role of a process group, from the names that its makers gave it.

DeepSpeed's groups, Megatron's parallel state and an `mpu` object keep groups in attributes that say
what they are for; a device mesh names its dimensions. Attributes are read and nothing is called:
this is the user's code. No module is imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from dsprof.trace.schema import ROLES

_KEEPERS = (
    "deepspeed.utils.groups",
    "deepspeed.runtime.sequence_parallel.parallel_state_sp",
    "megatron.core.parallel_state",
    "megatron.mpu.initialize",
)
"""Modules that keep groups in their globals."""

_MEANINGS = {
    "data": ("data", "dp", "ddp", "edp"),
    "expert": ("expert", "ep", "moe", "edp"),
    "tensor": ("tensor", "tp", "slice"),
    "pipeline": ("pipeline", "pipe", "pp"),
    "sequence": ("sequence", "seq", "sp", "ulysses"),
    "context": ("context", "cp"),
    "model": ("model", "mp"),
    "shard": ("shard", "fsdp"),
    "replicate": ("replicate", "replica"),
    "hpz": ("intra",),
    "parameters": ("param",),
}

_ROLES = {
    frozenset(meanings.split()): role
    for role, combinations in {
        "data": ("data", "data context", "data sequence"),
        "expert_data": ("expert data",),
        "expert": ("expert", "expert model"),
        "tensor": ("tensor", "tensor model", "expert tensor"),
        "pipeline": ("pipeline", "pipeline model"),
        "sequence": ("sequence",),
        "context": ("context",),
        "hpz": ("hpz parameters",),
        "shard": ("shard", "data shard", "shard context", "data shard context"),
        "replicate": ("replicate", "data replicate"),
        "model": ("model",),
    }.items()
    for meanings in combinations
}


def named_role(name: str) -> str:
    """Return the role that a name tells ("dp_shard", "_EXPERT_PARALLEL_GROUP"), "" for none.

    Names of several roles at once, such as Megatron's `_TENSOR_AND_DATA_PARALLEL_GROUP`, have none.
    """
    words = set(re.findall("[a-z]+", name.lower()))
    meant = (meaning for meaning, spoken in _MEANINGS.items() if not words.isdisjoint(spoken))
    return _ROLES.get(frozenset(meant), "")


def find_role(group: Any) -> str:
    """Return the role of a process group, "" while it is unknown."""
    return _kept_role(group) or _mesh_role(group)


def _kept_role(group: Any) -> str:
    """Return the role of the attributes that keep `group`, the most special one first."""
    modules = [sys.modules[name] for name in _KEEPERS if name in sys.modules]
    keepers = [*modules, *(getattr(module, "mpu", None) for module in modules)]
    names = [name for keeper in keepers for name in _names(keeper, group)]
    roles = {named_role(name) for name in names}
    if "_WORLD_GROUP" in names:  # DeepSpeed's own, for data parallelism where it was given none
        roles.add("data")
    return next((role for role in ROLES if role in roles), "")


def _names(keeper: Any, group: Any) -> Iterator[str]:
    for name, value in list(getattr(keeper, "__dict__", {}).items()):
        values = list(value.values()) if isinstance(value, dict) else value
        if values is group or (isinstance(values, list) and any(one is group for one in values)):
            yield name


def _mesh_role(group: Any) -> str:
    description = str(getattr(group, "group_desc", "") or "")
    return named_role(description) if description.startswith("mesh_") else ""
