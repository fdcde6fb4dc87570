"""Copies of offloading, on stand-ins that call in DeepSpeed's order."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

from dsprof.hooks.deepspeed.copies import DeepSpeedCopiesHook
from dsprof.hooks.deepspeed.known_engines import KnownEngines
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Copy
from tests.handed_over import handed_over

pytestmark = pytest.mark.usefixtures("in_c_and_in_python")


def copies(recorder: Recorder) -> list[tuple[str, str, int]]:
    assert recorder.failures == {}
    return [(r.what, r.direction, r.nbytes) for r in handed_over(recorder, Copy)]


class Engine:
    """An engine whose optimizer states or parameters live on the host, or do not."""

    def __init__(
        self, params: Sequence[Any] = (), *, parameters: str = "none", states: str = "none"
    ) -> None:
        self.module = SimpleNamespace(parameters=lambda: params)
        # The name itself: DeepSpeed's configuration turns members of its enumeration into values.
        self.zero_offload_param = lambda: SimpleNamespace(device=parameters)
        self.zero_offload_optimizer = lambda: SimpleNamespace(device=states)


def methods(recorder: Recorder, states: str = "cpu") -> Any:
    hook = DeepSpeedCopiesHook(recorder)
    recorder.shared(KnownEngines).tell(Engine(states=states), 0)
    hook.uninstall()
    wrapped = {t.name: hook.wrap(t, lambda *args, **kwargs: None) for t in hook.targets}
    return SimpleNamespace(**wrapped)


def stage_2(micro_step_id: int = 0, **fields: Any) -> SimpleNamespace:
    """An optimizer whose only parameter has 10 elements, 6 of them of this rank, in fp32."""
    given = {
        "cpu_offload": True,
        "micro_step_id": micro_step_id,
        "grad_position": {1: [0, 0, 0, 6]},
        "get_param_id": lambda param: 1,
        "single_partition_of_fp32_groups": [torch.zeros(6)],
        "bit16_groups_flat": [torch.zeros(12, dtype=torch.bfloat16)],
        "is_gradient_accumulation_boundary": lambda: True,
        **fields,
    }
    return SimpleNamespace(**given)


def test_gradients_of_stage_2_are_added_up_and_then_copied_in_fp32(recorder: Recorder) -> None:
    on, param = methods(recorder), torch.zeros(10, dtype=torch.bfloat16)
    on.async_accumulate_grad_in_cpu_via_gpu(stage_2(), param)
    on.async_accumulate_grad_in_cpu_via_gpu(stage_2(micro_step_id=1), param)
    on.async_inplace_copy_grad_to_fp32_buffer_from_gpu(stage_2(), param)
    assert copies(recorder) == [
        ("gradient", "to host", 20),
        ("gradient", "both ways", 40),
        ("gradient", "to host", 24),
    ]


@pytest.mark.parametrize(("is_compact", "count"), [(True, 1), (False, 0)])
def test_gradients_kept_in_fp32_are_copied_elsewhere(
    recorder: Recorder, is_compact: bool, count: int
) -> None:
    optimizer = stage_2(_use_compact_grad_partition_buffer=lambda group: is_compact)
    methods(recorder).copy_grads_in_partition(optimizer, torch.zeros(10))
    assert copies(recorder) == [("gradient", "to host", 24)] * count


def test_parameters_of_stage_2_are_copied_between_two_methods(recorder: Recorder) -> None:
    on, optimizer = methods(recorder), stage_2()
    step = recorder.progress.enter("step")
    on._optimizer_step(optimizer, 0)
    on.unscale_and_clip_grads(optimizer, [], 1.0)
    on._optimizer_step(optimizer, 0)
    on.reset_cpu_buffers(optimizer)
    on.reset_cpu_buffers(optimizer)
    recorder.progress.leave(step)
    assert copies(recorder) == [("parameter", "to device", 12)] * 2


def test_a_step_that_was_left_ends_no_copy(recorder: Recorder) -> None:
    on, optimizer = methods(recorder), stage_2()
    step = recorder.progress.enter("step")
    on._optimizer_step(optimizer, 0)
    recorder.progress.leave(step)
    step = recorder.progress.enter("step")
    on.reset_cpu_buffers(optimizer)
    assert copies(recorder) == []


@pytest.mark.parametrize("states_of_another", ["none", "cpu"])
def test_nothing_is_copied_without_offload(recorder: Recorder, states_of_another: str) -> None:
    on = methods(recorder, states_of_another)
    recorder.progress.enter("step")
    on._optimizer_step(stage_2(cpu_offload=False), 0)
    on.reset_cpu_buffers(stage_2(cpu_offload=False))
    on.copy_grads_in_partition(stage_2(cpu_offload=False), torch.zeros(10))
    stage_3 = SimpleNamespace(offload_optimizer=False, fp16_partitioned_groups_flat=[None])
    on.partition_grads(stage_3, [], [torch.zeros(5)])
    on._reassign_or_swap_out_partitioned_parameters(stage_3, 0)
    assert copies(recorder) == []


def test_what_runs_for_each_parameter_is_left_alone_until_an_engine_offloads(
    recorder: Recorder,
) -> None:
    hook, engines = DeepSpeedCopiesHook(recorder), recorder.shared(KnownEngines)
    before = DeepSpeedZeroOptimizer_Stage3.partition_grads
    engines.tell(Engine(), 0)
    assert hook.patches(DeepSpeedZeroOptimizer_Stage3.__module__) == []
    assert DeepSpeedZeroOptimizer_Stage3.partition_grads is before
    engines.tell(Engine(states="cpu"), 1)
    assert DeepSpeedZeroOptimizer_Stage3.partition_grads is not before
    hook.uninstall()
    assert DeepSpeedZeroOptimizer_Stage3.partition_grads is before


@pytest.mark.parametrize("boundary", [True, lambda: True])
def test_stage_3_keeps_gradients_twice_and_returns_parameters(
    recorder: Recorder, boundary: Any
) -> None:
    on = methods(recorder)
    optimizer = SimpleNamespace(
        offload_optimizer=True,
        offload_param=False,
        is_gradient_accumulation_boundary=boundary,
        gradient_accumulation_dtype=torch.bfloat16,
        fp32_partitioned_groups_flat=[torch.zeros(5)],
        fp16_partitioned_groups_flat=[torch.zeros(5, dtype=torch.bfloat16)],
    )
    on.partition_grads(optimizer, [], [torch.zeros(5)])
    on._reassign_or_swap_out_partitioned_parameters(optimizer, 0)
    assert copies(recorder) == [("gradient", "to host", 30), ("parameter", "to device", 10)]


@pytest.mark.parametrize(("device", "count"), [("cpu", 1), ("none", 0)])
def test_parameters_on_the_host_are_copied_for_a_gather(
    recorder: Recorder, device: str, count: int
) -> None:
    def param(number: int, status: str, persist: bool = False) -> SimpleNamespace:
        status_of = SimpleNamespace(name=status)
        return SimpleNamespace(
            ds_id=number, ds_status=status_of, ds_persist=persist, ds_tensor=torch.zeros(4)
        )

    on = methods(recorder)
    params = [param(1, "NOT_AVAILABLE"), param(2, "AVAILABLE"), param(3, "NOT_AVAILABLE", True)]
    gather = on._PartitionedParameterCoordinator__all_gather_params_
    recorder.shared(KnownEngines).tell(Engine(params, parameters=device), 0)
    gather(None, params, True)
    assert copies(recorder) == [("parameter", "to device", 16)] * count
