"""Micro-batches of torch.distributed.pipelining are micro-steps, each with its phases."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from dsprof.hooks.torch.pipelining import PipeliningHook
from dsprof.hooks.torch.steps import TrainingLoopHook
from dsprof.hooks.wire.groups import Groups
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Phase, Step
from tests.handed_over import handed_over


def test_each_micro_batch_is_a_micro_step(install: Callable[..., Recorder]) -> None:
    recorder = install(PipeliningHook, TrainingLoopHook)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stage = PipelineStage(model, 0, 1, torch.device("cpu"), group=dist.new_group([0]))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, target: (output - target).sum())
    for _ in range(2):
        schedule.step(torch.ones(4, 4), target=torch.ones(4, 4))
        optimizer.step()
    phases = handed_over(recorder, Phase)
    once = [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1), ("step", 1)]
    assert [(phase.name, phase.micro_step) for phase in phases] == once * 2
    assert [phase.stage for phase in phases if phase.name != "step"] == [0] * 8
    assert [r.micro_steps for r in handed_over(recorder, Step)] == [2, 2]


def test_the_group_of_a_stage_is_of_a_pipeline(install: Callable[..., Recorder]) -> None:
    groups = install(PipeliningHook).shared(Groups)
    group = dist.new_group([0])
    stage = PipelineStage(nn.Linear(4, 4), 0, 1, torch.device("cpu"), group=group)
    ScheduleGPipe(stage, 1).step(torch.ones(4, 4))
    assert groups.state(group).group.role == "pipeline"
