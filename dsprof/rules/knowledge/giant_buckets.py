"""Why a library sends most gradients as one, and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

from dsprof.analysis.aggregates.flushes import Flushes, FlushKind
from dsprof.rules.knowledge.buckets import DDP_MIB, MIB, PARTS, zero_elements


@dataclass(frozen=True, slots=True)
class Giant:
    """The largest reduction of a backward, and how to divide it."""

    nbytes: int
    backward_bytes: float  # all gradients of a backward
    count: float  # reductions in a backward
    part_bytes: float  # of a bucket as advised
    noun: str
    cause: str
    action: str
    fix: str
    config_patch: dict[str, Any] | None = None
    is_zero: bool = False
    needs_streams: bool = False  # to overlap at all: on a CPU the library calls synchronously

    @property
    def share(self) -> float:
        """Its part of the gradients of a backward."""
        return min(1.0, self.nbytes / self.backward_bytes) if self.backward_bytes else 0.0

    @property
    def parts(self) -> int:
        """In how many buckets the gradients of a backward would travel as advised."""
        return max(2, ceil(self.backward_bytes / self.part_bytes))


def of_flushes(flushes: Flushes, backwards: float) -> Giant | None:
    """Return the largest bucket, if a setting made it so large; `backwards` are of a step."""
    if not flushes.rows or not flushes.rank_steps:
        return None
    largest = max(flushes.rows, key=lambda kind: (kind.nbytes, kind))
    explain = _LIBRARIES.get(largest.library)
    same = {kind: sums for kind, sums in flushes.rows.items() if kind.library == largest.library}
    per_backward = [s.flushes / flushes.rank_steps / backwards for s in same.values()]
    nbytes = sum(kind.nbytes * n for kind, n in zip(same, per_backward, strict=True))
    # A parameter that is a bucket by itself cannot be divided.
    if explain is None or largest.parameters == 1:
        return None
    return explain(largest, nbytes, sum(per_backward))


_FROM_HOOKS = (
    "with async_op=True from hooks of the parameters (register_post_accumulate_grad_hook) "
    "and wait before the optimizer's step"
)


def by_hand(nbytes: float, count: float, *, is_sharded: bool) -> Giant:
    """Return the giant of a program that reduces its gradients itself, by synchronous calls."""
    return Giant(
        round(nbytes / count),
        nbytes,
        count,
        _part_bytes(nbytes),
        "The program reduces its gradients itself",
        "It waits for backward to end, and then for the reduction: nothing runs meanwhile.",
        f"Reduce {_FROM_HOOKS}; or apply fully_shard to the blocks of the model, then to the model:"
        " on devices FSDP reduces while backward goes on."
        if is_sharded
        else "Wrap the model in DistributedDataParallel, which reduces buckets while backward goes "
        f"on; or reduce {_FROM_HOOKS}.",
        "Reduce from hooks of the parameters" if is_sharded else "Wrap the model in DDP",
    )


def _ddp(largest: FlushKind, nbytes: float, count: float) -> Giant | None:
    item_bytes = _item_bytes(largest)
    if largest.capacity * item_bytes <= DDP_MIB * MIB * 1.05:
        return None
    cap = max(1, round(_part_bytes(nbytes) / MIB))
    return Giant(
        largest.nbytes,
        nbytes,
        count,
        _part_bytes(nbytes),
        f"bucket_cap_mb is {largest.capacity * item_bytes / MIB:.4g}",
        "DDP reduces a bucket when its last gradient is ready: for a bucket with most gradients, "
        "at the end of backward.",
        f"Pass bucket_cap_mb={cap} to DistributedDataParallel"
        + (", its default, or leave it out." if cap == DDP_MIB else "."),
        f"Pass `bucket_cap_mb={cap}` to DDP",
    )


def _fsdp(largest: FlushKind, nbytes: float, count: float) -> Giant:
    return Giant(
        largest.nbytes,
        nbytes,
        count,
        _part_bytes(nbytes),
        f"FSDP has one large unit, {largest.module or 'the whole model'}",
        "FSDP all-gathers and reduces a wrapped module as one, before its first "
        "layer and after its last.",
        "Wrap the blocks of the model as well: fully_shard on each block, then on the model; "
        "with FSDP1 an auto_wrap_policy. That also lowers the peak of memory.",
        "Apply fully_shard to its blocks",
        needs_streams=True,
    )


def _zero(largest: FlushKind, nbytes: float, count: float) -> Giant | None:
    if not largest.capacity:  # stage 0 has no such setting
        return None
    item_bytes = _item_bytes(largest)
    elements = zero_elements(nbytes / item_bytes)
    return Giant(
        largest.nbytes,
        nbytes,
        count,
        elements * item_bytes,
        f"reduce_bucket_size is {largest.capacity:,} elements",
        "ZeRO reduces a bucket when the next gradient does not fit; a bucket that holds all of "
        "them is sent at the end of backward.",
        f'Set "reduce_bucket_size" to {elements:,} elements, and "overlap_comm" to true. The '
        "buffers shrink with it.",
        "",  # the patch
        {"zero_optimization": {"reduce_bucket_size": elements, "overlap_comm": True}},
        is_zero=True,
        needs_streams=True,
    )


_LIBRARIES: dict[str, Callable[[FlushKind, float, float], Giant | None]] = {
    "": _zero,
    "DDP": _ddp,
    "FSDP1": _fsdp,
    "FSDP2": _fsdp,
}


def _item_bytes(kind: FlushKind) -> float:
    """Return the size of an element; that of float32 where the trace lost it."""
    return kind.nbytes / kind.elements if kind.elements and kind.nbytes else 4.0


def _part_bytes(backward_bytes: float) -> float:
    return max(1.0, min(DDP_MIB * MIB, backward_bytes / PARTS))
