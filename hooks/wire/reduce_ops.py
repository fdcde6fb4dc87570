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


def usual_name(options: Any) -> Any:
    """Return the name of the reduce op that options name or are; an unusual op as it is.

    For hooks: a record must not keep options, see `read_options` in c/collective.c.
    """
    op = getattr(options, "reduceOp", options)
    number = hash(op)
    return OP_NAMES[number] if 0 <= number < len(OP_NAMES) else op


def reduce_op_name(value: Any) -> str:
    """Return the name of what a record has as its reduce op: "SUM", "MAX"..., "" for none.

    Reading it costs 2 us in the dispatcher's form, so the writer asks and not the hook. An enum of
    pybind11 looks through all its members for its name, in Python: hence the table.
    """
    if value is None:
        return ""
    if type(value) is str:
        return value
    if type(value) is int:  # from a kernel in C++
        return _OP_NAMES.get(value, "")
    if isinstance(value, torch.ScriptObject):
        if not value._has_method("op"):  # unknown in torch 2.4
            return ""
        return _OP_NAMES.get(value._get_method("op")(), "")
    op = getattr(value, "op", value)
    return _OP_NAMES.get(getattr(op, "value", -1), "")
