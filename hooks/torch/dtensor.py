"""DTensor: from which placement to which a collective takes a tensor, and on which mesh dimension.

`redistribute_local_tensor` is a function that other modules import by name, so no patch of it is
seen by all callers. The placements' own methods, which it calls for each collective, are attributes
of classes: tensor and sequence parallelism, `redistribute`, `full_tensor`, gradient norms and
their backward all pass here. In a compiled graph only the collectives themselves are left.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from dsprof.hooks.base import Hook, Target
from dsprof.hooks.releases import is_before
from dsprof.hooks.wire.group_roles import named_role
from dsprof.hooks.wire.groups import Groups
from dsprof.hooks.wire.requests import Request, begin_request, end_request
from dsprof.recording.recorder.recorder import Recorder

if is_before("torch", "2.5"):
    _PLACEMENTS = "torch.distributed._tensor.placement_types"
    _MASKED = "torch.distributed._tensor.ops.embedding_ops"
elif is_before("torch", "2.10"):
    _PLACEMENTS = "torch.distributed.tensor.placement_types"
    _MASKED = "torch.distributed.tensor._ops._embedding_ops"
else:
    _PLACEMENTS = _MASKED = "torch.distributed.tensor.placement_types"
_MASKS = ("_MaskPartial", "MaskPartial")  # an embedding's output, by one name or the other
_REPLICATE = "_replicate_tensor" if is_before("torch", "2.10") else "_make_replicate_tensor"


def _target(owner: str, name: str, why: str, since: str = "") -> Target:
    carries = f"names of what {owner.lstrip('_')} {why}"
    return Target(_PLACEMENTS, owner, name, why, carries, since)


def _masked(owner: str, name: str, why: str) -> Target:
    return Target(_MASKED, owner, name, why, f"names of what embeddings {why}")


class DTensorHook(Hook):
    """Names what a redistribution asked for, and what the groups of a mesh are for."""

    name = "dtensor"
    targets = (
        _target("Shard", "_to_replicate_tensor", "all-gathers"),
        _target("_StridedShard", "_to_replicate_tensor", "all-gathers", since="2.5"),
        _target("Shard", "_to_new_shard_dim", "exchanges all to all"),
        _target("Partial", "_reduce_value", "reduces"),
        _target("Partial", "_reduce_shard_value", "reduces and scatters"),
        *(_masked(owner, "_reduce_value", "reduce") for owner in _MASKS),
        *(_masked(owner, "_reduce_shard_value", "reduce and scatter") for owner in _MASKS),
        _target("Shard", "_shard_tensor", "scatters a whole tensor"),
        _target("_StridedShard", "_shard_tensor", "scatters a whole tensor", since="2.5"),
        _target("Replicate", _REPLICATE, "broadcasts a whole tensor"),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._groups = recorder.shared(Groups)
        self._meshes: weakref.WeakSet[Any] = weakref.WeakSet()

    def wrap(self, target: Target, original: Callable[..., Any]) -> Any:
        end = functools.partial(end_request, self.recorder)
        if target.name == "_make_replicate_tensor":  # a class method: `original` is bound
            before = functools.partial(self._begin, _whole, "Replicate")
            return staticmethod(self.around(original, before, end))
        return self.around(original, functools.partial(self._begin, _CHANGES[target.name]), end)

    def _begin(
        self, change: Callable[..., str], placement: Any, tensor: Any, mesh: Any, dim: int, *to: Any
    ) -> Request | None:
        if mesh not in self._meshes:
            self._name_groups(mesh)
        names = mesh.mesh_dim_names
        where = names[dim] if names else f"dimension {dim}"
        return begin_request(self.recorder, f"DTensor {change(placement, *to)} on {where}")

    def _name_groups(self, mesh: Any) -> None:
        """Tell the roles: where a dimension spans all ranks its group is the world's own."""
        self._meshes.add(mesh)
        for dim, name in enumerate(mesh.mesh_dim_names or ()):
            role = named_role(name)
            if role:
                self._groups.roles.setdefault(mesh.get_group(dim), role)


def _replicated(placement: Any, *shape: Any) -> str:
    return f"{_spoken(placement)} -> Replicate"


def _exchanged(shard: Any, shape: Any, dim: int) -> str:
    return f"{_spoken(shard)} -> Shard({dim})"


def _scattered(partial: Any, shard: Any) -> str:
    return f"{_spoken(partial)} -> {_spoken(shard)}"


def _whole(placement: Any, *source: Any) -> str:
    return f"whole tensor -> {_spoken(placement)}"


_CHANGES: dict[str, Callable[..., str]] = {
    "_to_replicate_tensor": _replicated,
    "_to_new_shard_dim": _exchanged,
    "_reduce_value": _replicated,
    "_reduce_shard_value": _scattered,
    "_shard_tensor": _whole,
    "_replicate_tensor": _whole,  # before torch 2.10
}


def _spoken(placement: Any) -> str:
    """Return `Shard(0)`, `Partial(sum)`, `Replicate`; `repr` of some tells inner offsets too."""
    if isinstance(placement, str):
        return placement
    kind = type(placement).__name__.lstrip("_")
    of = getattr(placement, "dim", None)
    of = getattr(placement, "reduce_op", None) if of is None else of
    return kind if of is None else f"{kind}({of})"
