"""Settings of how much each library reduces at once, with their remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

MIB = 1 << 20
_LEAST_ELEMENTS, _MOST_ELEMENTS = 1_000_000, 50_000_000
"""2 and 100 MB in bf16: from the one on latency matters little, from the other on not at all."""

PARTS = 8
"""Buckets of a small model: the last one, an eighth, is left to reduce when backward is over."""

DDP_MIB = 25
"""DDP's own default; FSDP has none, and the same size serves."""


def zero_elements(in_backward: float) -> int:
    """Return the `reduce_bucket_size` for a backward with so many elements of gradients.

    All rules advise this size: a larger bucket would leave no backward to hide its reduction.
    """
    return min(_MOST_ELEMENTS, max(_LEAST_ELEMENTS, ceil(in_backward / PARTS)))


@dataclass(frozen=True, slots=True)
class Buckets:
    """Reductions of gradients by one library, of one rank and step."""

    flushes_per_step: float
    mean_bytes: float
    elements_per_step: int
    reductions_per_step: float  # backwards that reduce
    capacity: int  # elements; 0: no bound
    exposed_ms_per_step: float

    @property
    def in_backward(self) -> float:
        """Elements of one backward: a bucket holds no more, however large it is."""
        return self.elements_per_step / self.reductions_per_step

    @property
    def capacity_mib(self) -> float:
        """The capacity in MiB, of elements as large as those that were sent."""
        sent = self.elements_per_step
        item_bytes = self.mean_bytes * self.flushes_per_step / sent if sent else 0.0
        return self.capacity * item_bytes / MIB


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting for the size of reductions, in words for a report."""

    noun: str
    title: str
    fact: Callable[[Buckets], str]
    cause: str
    action: str
    fix: str
    suggested: Callable[[Buckets], int]  # elements
    has_capacity: bool = True  # a bucket that was never full is not bounded by the setting
    key: str = ""  # of zero_optimization


_ZERO = Knob(
    noun="bucket flushes",
    title="Buckets are too small",
    fact=lambda bucket: f"reduce_bucket_size is {bucket.capacity:,} elements",
    cause="A bucket is sent when the next gradient does not fit; one that is smaller than most "
    "parameters sends each gradient by itself.",
    action='Set "reduce_bucket_size" to {elements:,}. It counts elements, not bytes, and the '
    "buffer is allocated at this size. A bucket with most gradients, as with the default of "
    "500,000,000, could not overlap with backward.",
    fix="",  # the patch
    suggested=lambda bucket: zero_elements(bucket.in_backward),
    key="reduce_bucket_size",
)
_DDP = Knob(
    noun="DDP buckets",
    title="Buckets are too small",
    fact=lambda bucket: f"bucket_cap_mb is {bucket.capacity_mib:.3g}",
    cause="DDP closes a bucket once its gradients come to bucket_cap_mb, and reduces each bucket "
    "by itself.",
    action=f"Pass bucket_cap_mb={DDP_MIB} to DistributedDataParallel, or leave it out: that is "
    "the default. Hugging Face Trainer calls it ddp_bucket_cap_mb; Accelerate takes it in "
    "DistributedDataParallelKwargs.",
    fix=f"Pass `bucket_cap_mb={DDP_MIB}` to DDP",
    suggested=lambda _: DDP_MIB * MIB // 4,
)
_FSDP = Knob(
    noun="FSDP reductions",
    title="FSDP units are too small",
    fact=lambda bucket: "each module that was wrapped is reduced by itself",
    cause="FSDP all-gathers, and reduces, each wrapped module by one collective; "
    "small wrapped modules make many small collectives, in forward and in backward.",
    action="Wrap larger modules: fully_shard on each block of the model and not on its layers; "
    "with FSDP1 an auto_wrap_policy of blocks (ModuleWrapPolicy), or a larger min_num_params. "
    "A few blocks can be one unit: fully_shard takes a list of modules.",
    fix="Wrap blocks of the model, not layers",
    suggested=lambda _: DDP_MIB * MIB // 4,
    has_capacity=False,
)

KNOBS: dict[str, Knob] = {"": _ZERO, "DDP": _DDP, "FSDP1": _FSDP, "FSDP2": _FSDP}
"""What sets the size of buckets, by the library that flushes them; "" is ZeRO."""
