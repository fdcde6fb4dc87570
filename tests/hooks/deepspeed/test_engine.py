"""Phases and steps of an engine, on a stand-in that calls in DeepSpeed's order."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import pytest
from torch import nn

from dsprof.hooks import base
from dsprof.hooks.deepspeed import engine as engine_hook
from dsprof.hooks.deepspeed.engine import DeepSpeedEngineHook
from dsprof.hooks.torch.training_loop import Loop
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import EngineConfig, Phase, Step
from tests.handed_over import handed_over

pytestmark = pytest.mark.usefixtures("in_c_and_in_python")


class Module:
    training = False  # hooks.models does not look at it

    def parameters(self) -> list[Any]:
        return []


class Engine:
    """Accumulates over two micro-steps; the hook wraps the methods of a subclass."""

    optimizer = None
    module: Any = Module()
    training = True
    fails = False

    def __init__(self) -> None:
        self.micro_steps = 0

    def forward(self) -> None:
        pass

    def backward(self) -> None:
        self._backward_prologue()
        self._backward_epilogue()

    def _backward_prologue(self) -> None:
        pass

    def _backward_epilogue(self) -> None:
        pass

    def step(self) -> None:
        self.micro_steps += 1
        if self.micro_steps % 2 == 0:
            self._take_model_step()

    def _take_model_step(self) -> None:
        if self.fails:
            raise ValueError("of the optimizer")


@pytest.fixture
def engine(recorder: Recorder) -> Engine:
    hook = DeepSpeedEngineHook(recorder)
    names = {target.name: target for target in hook.targets if hasattr(Engine, target.name)}
    methods = {name: hook.wrap(target, getattr(Engine, name)) for name, target in names.items()}
    kind = type("HookedEngine", (Engine,), methods)
    return kind()  # type: ignore[no-any-return]


def phases(recorder: Recorder) -> list[tuple[str, int, int]]:
    spans = handed_over(recorder, Phase)
    return [(span.name, span.step, span.micro_step) for span in spans]


def steps(recorder: Recorder) -> list[tuple[int, int, str]]:
    found = handed_over(recorder, Step)
    return [(step.step, step.micro_steps, step.source) for step in found]


def train(engine: Engine, micro_steps: int) -> None:
    for _ in range(micro_steps):
        engine.forward()
        engine.backward()
        engine.step()


def test_micro_steps_and_steps(recorder: Recorder, engine: Engine) -> None:
    train(engine, 4)
    assert recorder.failures == {}
    assert steps(recorder) == [(0, 2, "deepspeed"), (1, 2, "deepspeed")]
    assert phases(recorder)[:6] == [
        ("forward", 0, 0),
        ("backward", 0, 0),
        ("step", 0, 0),
        ("forward", 0, 1),
        ("backward", 0, 1),
        ("step", 0, 1),
    ]
    assert recorder.progress.scope.phase == ""


def test_micro_steps_count_where_step_is_called_at_the_last_only(
    recorder: Recorder, engine: Engine
) -> None:
    """As Accelerate does it, with an evaluation in between."""
    for _ in range(2):
        for _ in range(3):
            engine.forward()
            engine.backward()
            engine.training = False
            engine.forward()
            engine.training = True
        engine.micro_steps = 1
        engine.step()
    assert steps(recorder) == [(0, 3, "deepspeed"), (1, 3, "deepspeed")]
    assert [span[1:] for span in phases(recorder) if span[0] == "backward"] == [
        (step, micro_step) for step in range(2) for micro_step in range(3)
    ]


def test_micro_steps_count_where_a_step_has_two_losses(recorder: Recorder, engine: Engine) -> None:
    """As a GAN's discriminator, whose bare module computes them."""
    for _ in range(2):
        engine.backward()
        engine.backward()
        engine.micro_steps = 1
        engine.step()
    assert steps(recorder) == [(0, 2, "deepspeed"), (1, 2, "deepspeed")]
    assert [span for span in phases(recorder) if span[0] == "backward"] == [
        ("backward", step, micro_step) for step in range(2) for micro_step in range(2)
    ]


def test_backward_of_the_loss_itself_is_a_phase(recorder: Recorder, engine: Engine) -> None:
    engine.forward()
    engine._backward_prologue()
    assert recorder.progress.scope.phase == "backward"
    engine._backward_epilogue()
    assert [name for name, *_ in phases(recorder)] == ["forward", "backward"]
    assert recorder.progress.scope.phase == ""


def test_a_model_step_outside_of_step_is_a_step(recorder: Recorder, engine: Engine) -> None:
    """As a pipeline engine does it."""
    engine._take_model_step()
    assert steps(recorder) == [(0, 1, "deepspeed")]


def test_an_exception_of_the_engine_passes_and_ends_the_phase(recorder: Recorder) -> None:
    def broken(self: Any) -> None:
        raise ValueError("of the user")

    hook = DeepSpeedEngineHook(recorder)
    target = next(target for target in hook.targets if target.name == "forward")
    with pytest.raises(ValueError, match="of the user"):
        hook.wrap(target, broken)(Engine())
    assert phases(recorder) == [("forward", 0, 0)]
    assert recorder.progress.scope.phase == ""


def test_a_step_that_raises_is_no_step(recorder: Recorder, engine: Engine) -> None:
    train(engine, 4)
    engine.fails = True
    with pytest.raises(ValueError, match="of the optimizer"):
        train(engine, 2)
    assert steps(recorder) == [(0, 2, "deepspeed"), (1, 2, "deepspeed")]
    assert recorder.failures == {}
    assert recorder.progress.scope.phase == ""


def test_the_optimizer_in_an_engines_constructor_takes_no_step(
    recorder: Recorder, engine: Engine
) -> None:
    recorder.progress.end_step("optimizer")
    assert steps(recorder) == []


def test_engines_that_take_turns_count_for_themselves(recorder: Recorder) -> None:
    """As a generator and its discriminator do."""
    hook = DeepSpeedEngineHook(recorder)
    names = {target.name: target for target in hook.targets if hasattr(Engine, target.name)}
    methods = {name: hook.wrap(target, getattr(Engine, name)) for name, target in names.items()}
    kind = type("HookedEngine", (Engine,), methods)
    first, second = kind(), kind()
    second.micro_steps = 1  # so that its next micro-step is its last one
    for _ in range(2):
        train(first, 1)
        train(second, 1)
    assert recorder.failures == {}
    found = handed_over(recorder, Step)
    assert [(step.engine, step.micro_steps) for step in found] == [(1, 1), (0, 2)]
    spans = handed_over(recorder, Phase)
    assert [(s.engine, s.micro_step) for s in spans if s.name == "forward"] == [
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 0),
    ]


def test_an_engine_that_is_gone_leaves_its_number_and_nothing_else(recorder: Recorder) -> None:
    hook = DeepSpeedEngineHook(recorder)
    target = next(target for target in hook.targets if target.name == "forward")
    forward = hook.wrap(target, Engine.forward)
    for _ in range(2):
        engine = Engine()
        gone = weakref.ref(engine)
        forward(engine)
        del engine
        assert gone() is None
    engines = [
        part.engine for part in recorder.outbox.definitions if isinstance(part, EngineConfig)
    ]
    assert engines == [0, 1]


def test_a_backward_that_raised_ends_with_the_next_phase(
    recorder: Recorder, engine: Engine
) -> None:
    engine.forward()
    engine._backward_prologue()
    train(engine, 1)
    assert recorder.progress.scope.phase == ""
    assert recorder.hot.phases == []


def test_an_engine_that_trains_on_is_left_to_c(recorder: Recorder, engine: Engine) -> None:
    engine.module = nn.Linear(2, 2)
    train(engine, 8)  # until the model is described
    seen = set()
    sys.setprofile(lambda frame, event, argument: seen.add(frame.f_code.co_filename))
    train(engine, 2)
    sys.setprofile(None)
    assert (engine_hook.__file__ in seen) == (base.compiled is None)
    assert [micro_steps for _, micro_steps, _ in steps(recorder)] == [2] * 5


@pytest.mark.parametrize("is_described", [False, True])
def test_a_failure_leaves_the_call_alone_and_the_third_ends_the_hook(
    recorder: Recorder, engine: Engine, is_described: bool
) -> None:
    kind = type(engine)
    if is_described:
        engine.module = nn.Linear(2, 2)
        train(engine, 8)

    class Renamed(kind):  # type: ignore[misc, valid-type]
        @property
        def training(self) -> bool:  # type: ignore[override]
            raise ValueError("renamed")

    engine.__class__ = Renamed
    for _ in range(3):
        before = len(phases(recorder))
        engine.backward()
        engine.forward()  # which asks for `training`
        assert len(phases(recorder)) == before + 1
        assert recorder.failures == {"deepspeed.engine": "ValueError: renamed"}
    engine.__class__ = kind
    train(engine, 2)
    assert len(phases(recorder)) == before + 1


def test_a_plain_loop_in_a_new_process_group_has_steps_of_its_own(
    recorder: Recorder, engine: Engine
) -> None:
    """As in a notebook, where DeepSpeed keeps the engine of the training before."""
    train(engine, 2)
    recorder.begin_again()
    assert not recorder.shared(Loop).has_engine
    for _ in range(3):
        recorder.progress.end_step("optimizer")
    assert steps(recorder) == [(step, 1, "optimizer") for step in range(3)]


def test_a_plain_loop_instead_of_an_engine_that_failed_has_steps(recorder: Recorder) -> None:
    def fail() -> None:
        raise ValueError("unknown setting")

    hook = DeepSpeedEngineHook(recorder)
    target = next(target for target in hook.targets if target.name == "__init__")
    with pytest.raises(ValueError, match="unknown setting"):
        hook.wrap(target, fail)()
    recorder.progress.end_step("optimizer")
    assert not recorder.shared(Loop).has_engine
    assert steps(recorder) == [(0, 1, "optimizer")]


def test_an_engine_that_trains_on_in_a_new_process_group_marks_its_steps(
    recorder: Recorder, engine: Engine
) -> None:
    train(engine, 2)
    recorder.begin_again()
    engine.forward()
    recorder.progress.end_step("optimizer")
    assert recorder.shared(Loop).has_engine
    assert steps(recorder) == []


def test_an_engine_that_is_made_while_a_new_process_group_begins_is_expected(
    recorder: Recorder,
) -> None:
    """Its own first collective begins the new trace, and a trial step of its optimizer follows."""
    hook = DeepSpeedEngineHook(recorder)
    target = next(target for target in hook.targets if target.name == "__init__")
    hook.wrap(target, recorder.begin_again)()
    recorder.progress.end_step("optimizer")
    assert recorder.shared(Loop).has_engine
    assert steps(recorder) == []
