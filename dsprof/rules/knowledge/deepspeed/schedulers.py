"""The schedulers of DeepSpeed, each with the parameters that it takes.

Read in the sources of DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Mapping

_WARMUP = ("warmup_num_steps", "warmup_type", "last_batch_iteration")
_RATES = ("warmup_min_lr", "warmup_max_lr")

SCHEDULERS: Mapping[str, frozenset[str]] = {
    "WarmupLR": frozenset((*_WARMUP, *_RATES)),
    "WarmupDecayLR": frozenset((*_WARMUP, *_RATES, "total_num_steps")),
    "WarmupCosineLR": frozenset((*_WARMUP, "total_num_steps", "warmup_min_ratio", "cos_min_ratio")),
    "OneCycle": frozenset(
        ("cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "decay_step_size", "decay_mom_rate")
        + ("cycle_first_step_size", "cycle_second_step_size", "cycle_first_stair_count")
        + ("cycle_second_stair_count", "cycle_momentum", "cycle_min_mom", "cycle_max_mom")
        + ("last_batch_iteration",)
    ),
    "LRRangeTest": frozenset(
        ("lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate")
        + ("lr_range_test_staircase", "last_batch_iteration")
    ),
}
