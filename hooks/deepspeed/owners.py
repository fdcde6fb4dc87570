"""Classes of DeepSpeed in which several hooks have targets: module and name."""

from __future__ import annotations

ENGINE = ("deepspeed.runtime.engine", "DeepSpeedEngine")
STAGE_1_2 = ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer")
STAGE_3 = ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3")
COORDINATOR = (
    "deepspeed.runtime.zero.partitioned_param_coordinator",
    "PartitionedParameterCoordinator",
)
