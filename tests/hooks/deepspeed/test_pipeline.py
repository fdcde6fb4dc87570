"""A pipeline's instructions, on a stand-in that looks them up as DeepSpeed does."""

from __future__ import annotations

from types import MethodType
from typing import Any

import pytest

from dsprof.hooks.deepspeed.engine import DeepSpeedEngineHook
from dsprof.hooks.deepspeed.pipeline import phase_name
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Phase, Step
from tests.handed_over import handed_over


class ForwardPass: ...


class BackwardPass: ...


class SendActivation: ...


class OptimizerStep: ...


def _nothing(self: Any, **kwargs: Any) -> None:
    pass


def _step(self: Any) -> None:
    self._take_model_step()


class Pipeline:
    """One stage, two micro-batches, the second forward before the first backward."""

    optimizer = None

    class module:  # noqa: N801
        @staticmethod
        def parameters() -> list[Any]:
            return []

    _INSTRUCTION_MAP = {  # noqa: RUF012
        ForwardPass: _nothing,
        SendActivation: _nothing,
        BackwardPass: _nothing,
        OptimizerStep: _step,
    }

    def _take_model_step(self) -> None:
        pass

    def train_batch(self) -> None:
        self._exec_schedule(
            [ForwardPass, SendActivation, ForwardPass, BackwardPass, SendActivation, BackwardPass]
            + [OptimizerStep]
        )

    def _exec_schedule(self, schedule: list[type]) -> None:
        for kind in schedule:
            MethodType(self._INSTRUCTION_MAP[kind], self)()


def hooked(recorder: Recorder) -> Any:
    hook = DeepSpeedEngineHook(recorder)
    names = {target.name: target for target in hook.targets if hasattr(Pipeline, target.name)}
    names.pop("__init__")
    methods = {name: hook.wrap(target, getattr(Pipeline, name)) for name, target in names.items()}
    return type("Hooked", (Pipeline,), methods)()


def test_instructions_are_phases_of_their_micro_batches(recorder: Recorder) -> None:
    pipeline = hooked(recorder)
    for _ in range(2):
        pipeline.train_batch()
    assert recorder.failures == {}
    phases = handed_over(recorder, Phase)
    assert [(p.name, p.micro_step) for p in phases if p.step == 1] == [
        ("forward", 0),
        ("send activation", 0),
        ("forward", 1),
        ("backward", 0),
        ("send activation", 1),
        ("backward", 1),
        ("step", 1),
    ]


def test_a_batch_is_a_step(recorder: Recorder) -> None:
    pipeline = hooked(recorder)
    pipeline.train_batch()
    pipeline._exec_schedule([ForwardPass])  # an evaluation
    pipeline.train_batch()
    steps = handed_over(recorder, Step)
    assert [(s.step, s.micro_steps, s.engine) for s in steps] == [(0, 2, 0), (1, 2, 0)]


def test_the_instruction_map_itself_is_left_as_it_was(recorder: Recorder) -> None:
    before = dict(Pipeline._INSTRUCTION_MAP)
    assert hooked(recorder)._INSTRUCTION_MAP is not Pipeline._INSTRUCTION_MAP
    assert before == Pipeline._INSTRUCTION_MAP


@pytest.mark.parametrize(
    ("instruction", "phase"),
    [
        ("ForwardPass", "forward"),
        ("RecvGrad", "recv grad"),
        ("LoadMicroBatch", "load micro batch"),
        ("CommitP2P", "commit p2p"),
    ],
)
def test_phases_have_the_names_that_people_use(instruction: str, phase: str) -> None:
    assert phase_name(instruction) == phase
