from __future__ import annotations

import pytest

from dsprof.rules.knowledge.deepspeed.values import not_taken, takes

ZERO = "zero_optimization"


@pytest.mark.parametrize(
    ("path", "taken", "refused", "words"),
    [
        (f"{ZERO}.sub_group_size", 0, -1, "must be at least 0"),
        (f"{ZERO}.reduce_bucket_size", 1, 0, "must be at least 1"),
        (f"{ZERO}.offload_optimizer.ratio", 1.0, 1.1, "must be between 0 and 1"),
        ("compile.passes", ["z1"], ["z2"], "must be a list of z1, z3, autosp, autotp or null"),
        (f"{ZERO}.offload_param.device", "nvme", "NVMe", "must be one of none, cpu, nvme"),
        ("no.such.key", "a", "b", ""),
    ],
)
def test_a_value_that_is_not_taken_is_answered_with_what_is(path, taken, refused, words):
    assert not_taken(path, taken) == ""
    assert not_taken(path, refused) == words


def test_a_value_is_looked_at_from_a_release_on():
    every = takes().values()
    assert any(taken.since for taken in every)
    assert all(isinstance(taken.since, tuple) for taken in every)
    assert takes()["checkpoint"].since == ()


@pytest.mark.parametrize(
    ("path", "taken", "refused"),
    [
        ("autotuning", [{}], [[], "on", None]),
        ("tensorboard.output_path", ["", "logs"], [1, None]),
        ("comms_logger.prof_ops", [[], ["all_reduce"]], ["all_reduce", {}]),
        ("optimizer.type", ["Adam", None], ["", 1]),
        ("sequence_parallel_size", [1, 0.5], [0, "2"]),
        (f"{ZERO}.zenflow.select_interval", ["auto", -1, 2], [1.5, "2"]),
        ("expert_parallel.comm_qp_margin", [0, 1], [-1, 0.5]),
        ("expert_parallel.num_limited_groups", [1, 1.5, None], [0.5, "1"]),
        ("expert_parallel.autoep_size", [1], [0, 1.5]),
        (f"{ZERO}.zenflow.topk_ratio", [0.5, "auto"], [0, 1]),
        ("fp16.loss_scale_window", [1000, "1000"], [True]),
        ("autotuning.exps_dir", ["dir"], ["", None]),
        ("vocabulary_size", [1.5, "", None], ["many"]),
        ("wall_clock_breakdown", [True, 0], ["true", None]),
        ("expert_parallel.validate_folding_routing", [False], [0, None]),
        ("expert_parallel.expert_w1", ["w1", None], ["", "experts.w1"]),
        ("torch_autocast.dtype", ["bfloat16", "torch.float16", "fp32"], ["complex64", 16]),
        ("communication_data_type", ["FP16", "bf16", None], ["int8", 16]),
        ("hybrid_engine.max_out_tokens", [1, "8", {}], [0, "0"]),
    ],
)
def test_a_form_ends_where_deepspeed_refuses(path, taken, refused):
    assert [value for value in taken if not_taken(path, value)] == []
    assert [value for value in refused if not not_taken(path, value)] == []
