"""Names of reduce operations: SUM, MAX and so on."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_OP_NAMES: dict[int, str] = {
    op.value: name for name, op in dist.ReduceOp.RedOpType.__members__.items()
}


def _names_by_hash() -> tuple[str, ...]:
    """Return the names of reduce ops by their hash, up to the first whose hash is not its number.

    Reading the hash is several times as fast as comparing ops or reading their number.
    """
    names: list[str] = []
    for name, op in dist.ReduceOp.RedOpType.__members__.items():
        if name == "PREMUL_SUM" or hash(dist.ReduceOp(op)) != len(names) or op.value != len(names):
            break
        names.append(name)
    return tuple(names)


OP_NAMES = _names_by_hash()
"""Names of reduce ops by their hash, which is the number of an op."""


def reduce_op_name(value: Any) -> str:
    """Return the name of what an operation got as its reduce op: "SUM", "MAX"..., "" for none.

    For hooks: a record must not keep what it got, see `read_options` in c/collective.c. An enum of
    pybind11 looks through all its members for its name, in Python: hence the tables.
    """
    if value is None:
        return ""
    if type(value) is int:  # from a kernel in C++
        return _OP_NAMES.get(value, "")
    if isinstance(value, torch.ScriptObject):
        if not value._has_method("op"):  # unknown in torch 2.4
            return ""
        return _OP_NAMES.get(value._get_method("op")(), "")
    op = getattr(value, "reduceOp", value)  # of the options that a method got
    number = hash(op)
    if 0 <= number < len(OP_NAMES):
        return OP_NAMES[number]
    return _OP_NAMES.get(getattr(getattr(op, "op", op), "value", -1), "")
