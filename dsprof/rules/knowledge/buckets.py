"""Settings of how much each library reduces at once, with their remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20
_ZERO_ELEMENTS = 50_000_000
"""100 MB in bf16: far above the latency of any network, and small beside a model that needs it."""

DDP_MIB = 25
"""DDP's own default; FSDP has none, and the same size serves."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Reductions of gradients by one library, of one rank and step."""

    flushes_per_step: float
    mean_bytes: float
    elements_per_step: int
    capacity: int  # elements; 0: no bound
    exposed_ms_per_step: float

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
    suggested_elements: int
    has_capacity: bool = True  # a bucket that was never full is not bounded by the setting
    config_patch: dict[str, Any] | None = None


_ZERO = Knob(
    noun="bucket flushes",
    title="Buckets are too small",
    fact=lambda bucket: f"reduce_bucket_size is {bucket.capacity:,} elements",
    cause="A bucket is sent when the next gradient does not fit; one that is smaller than most "
    "parameters sends each gradient by itself.",
    action=f'Set "reduce_bucket_size" to {_ZERO_ELEMENTS:,} elements or delete the key (default '
    "500,000,000). It counts elements, not bytes, and the buffer is allocated at this size.",
    fix="",  # the patch
    suggested_elements=_ZERO_ELEMENTS,
    config_patch={"zero_optimization": {"reduce_bucket_size": _ZERO_ELEMENTS}},
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
    suggested_elements=DDP_MIB * MIB // 4,
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
    suggested_elements=DDP_MIB * MIB // 4,
    has_capacity=False,
)

KNOBS: dict[str, Knob] = {"": _ZERO, "DDP": _DDP, "FSDP1": _FSDP, "FSDP2": _FSDP}
"""What sets the size of buckets, by the library that flushes them; "" is ZeRO."""
