"""The role of a process group, from the names that its makers gave it.

DeepSpeed's groups, Megatron's parallel state and the process group managers of other programs keep
groups in attributes that say what they are for; a device mesh names its dimensions. Attributes are
read and nothing is called: this is the user's code. No module is imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from dsprof.trace.schema import ROLES

_KEEP_NONE = (ModuleType, FunctionType, BuiltinFunctionType, type)
"""Types of most globals."""

_MOST_VALUES = 1000
"""Longer lists and dicts are data, and take time to look through."""

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


def find_roles(groups: list[Any]) -> list[str]:
    """Return the role of each process group, "" while it is unknown.

    It takes 1 to 10 ms, by how many modules are loaded, however many groups there are.
    """
    names: dict[int, list[str]] = {id(group): [] for group in groups}
    for keeper in _keepers():
        for name, value in _attributes(keeper).items():
            for kept in (value, *_elements(value)):
                if id(kept) in names:
                    names[id(kept)].append(name)
    return [_kept_role(names[id(group)]) or _mesh_role(group) for group in groups]


def _keepers() -> list[Any]:
    """Return the modules that may keep groups in their globals, and the objects there."""
    modules = [module for name, module in list(sys.modules.items()) if _may_keep(name)]
    values = [value for module in modules for value in _attributes(module).values()]
    return [*modules, *(value for value in values if type(value) not in _KEEP_NONE)]


def _may_keep(module: str) -> bool:
    return module == "__main__" or "group" in module or "parallel" in module or "mpu." in module


def _kept_role(names: list[str]) -> str:
    """Return the most special role of the names under which a group is kept."""
    roles = {named_role(name) for name in names}
    if "_WORLD_GROUP" in names:  # DeepSpeed's own, for data parallelism where it was given none
        roles.add("data")
    return next((role for role in ROLES if role in roles), "")


def _attributes(keeper: Any) -> dict[str, Any]:
    """Return a copy of what `keeper` itself has, past what its class does to find more."""
    try:
        return dict(object.__getattribute__(keeper, "__dict__"))
    except Exception:  # no attributes, or a proxy of nothing
        return {}


def _elements(value: Any) -> Iterable[Any]:
    """Return what a short list or dict contains; classes derived from these may run code."""
    if type(value) not in (list, dict) or len(value) > _MOST_VALUES:
        return ()
    return list(value.values()) if type(value) is dict else value


def _mesh_role(group: Any) -> str:
    description = str(getattr(group, "group_desc", "") or "")
    return named_role(description) if description.startswith("mesh_") else ""
