"""DeepSpeed configurations beside those of the truth table: what changes from the usual one.

`stage` is that of ZeRO, `zero` its further keys; `width`, `groups`, `frozen` and `unused` are of
the model; all else are top-level keys.
"""

from __future__ import annotations

from typing import Any

NO_FETCH_STAYS = {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}

VARIATIONS: dict[str, dict[str, Any]] = {
    "float32": {"stage": 2, "bf16": {"enabled": False}},
    "sent as float32": {"stage": 2, "communication_data_type": "fp32"},
    "not contiguous": {
        "stage": 2,
        "zero": {"contiguous_gradients": False, "use_multi_rank_bucket_allreduce": False},
    },
    "not contiguous, stage 3": {
        "stage": 3,
        "zero": {"contiguous_gradients": False, "reduce_scatter": False},
    },
    "four micro-steps": {"stage": 2, "gradient_accumulation_steps": 4},
    "all persistent": {"stage": 3, "zero": {"stage3_param_persistence_threshold": 100_000}},
    "some persistent": {"stage": 3, "zero": {"stage3_param_persistence_threshold": 1_000}},
    "let go": {"stage": 3, "zero": NO_FETCH_STAYS},
    "fetched by all-reduce": {
        "stage": 3,
        "zero": {"stage3_use_all_reduce_for_fetch_params": True},
    },
    "float32 gradients, stage 1": {"stage": 1, "data_types": {"grad_accum_dtype": "fp32"}},
    "tiny buckets": {"stage": 2, "zero": {"reduce_bucket_size": 1_000}},
    "round robin": {
        "stage": 2,
        "zero": {"round_robin_gradients": True, "use_multi_rank_bucket_allreduce": False},
    },
    "odd sizes, stage 1": {"stage": 1, "width": 251},
    "odd sizes, stage 3": {"stage": 3, "width": 251},
    "two groups": {"stage": 2, "groups": 2},
    "frozen, stage 2": {"stage": 2, "frozen": 1},
    "frozen, stage 3": {"stage": 3, "frozen": 1},
    "unused": {"stage": 2, "unused": 1},
}
