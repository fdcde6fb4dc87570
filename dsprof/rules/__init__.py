"""The rules; one more is its file, its docs page and a line here.

The order decides who owns exposed time that two rules could save: the more specific rule first.
"""

from __future__ import annotations

from dsprof.rules import (
    allocator_fragmentation,
    allreduce_for_sharded_gradients,
    barrier_in_step,
    collective_timeout,
    comms_logger_enabled,
    communication_bound_step,
    data_quality,
    device_idle,
    device_out_of_memory,
    fp32_gradients,
    giant_bucket,
    late_rank,
    low_comm_overlap,
    mismatched_collective,
    misspelt_variable,
    nccl_warning,
    network_differs_across_ranks,
    reduction_every_micro_step,
    scalar_collectives,
    small_collectives,
    stuck_collective,
    sync_debug_variable,
    transport_fallback,
    unexplained_traffic,
    unparsable_integer_variable,
    unrecognised_kernels,
    variable_differs_across_ranks,
)
from dsprof.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    data_quality.RULE,
    collective_timeout.RULE,
    device_out_of_memory.RULE,
    network_differs_across_ranks.RULE,
    transport_fallback.RULE,
    nccl_warning.RULE,
    unrecognised_kernels.RULE,
    stuck_collective.RULE,
    mismatched_collective.RULE,
    late_rank.RULE,
    device_idle.RULE,
    allreduce_for_sharded_gradients.RULE,
    reduction_every_micro_step.RULE,
    unexplained_traffic.RULE,
    fp32_gradients.RULE,
    barrier_in_step.RULE,
    scalar_collectives.RULE,
    small_collectives.RULE,
    giant_bucket.RULE,
    low_comm_overlap.RULE,
    communication_bound_step.RULE,
    allocator_fragmentation.RULE,
    comms_logger_enabled.RULE,
    sync_debug_variable.RULE,
    misspelt_variable.RULE,
    unparsable_integer_variable.RULE,
    variable_differs_across_ranks.RULE,
)
