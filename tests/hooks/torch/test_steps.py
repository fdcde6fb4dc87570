"""Steps, micro-steps and phases of loops that no library marks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.jit import _builtins
from torch.utils.checkpoint import checkpoint

from dsprof.hooks.torch.steps import TrainingLoopHook
from dsprof.hooks.torch.training_loop import Loop
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Phase, Step
from tests.handed_over import handed_over


@pytest.fixture
def recorder(install: Callable[..., Recorder]) -> Recorder:
    return install(TrainingLoopHook)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def loss(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(2, 4)).sum()


def forward(recorder: Recorder, model: nn.Module) -> torch.Tensor:
    """Run a model as the hooks of DDP and FSDP see it."""
    begun = recorder.shared(Loop).begin_forward(model)
    value = loss(model)
    recorder.shared(Loop).end_forward(begun)
    return value


def steps(recorder: Recorder) -> list[int]:
    """Micro-steps of each step."""
    return [record.micro_steps for record in handed_over(recorder, Step)]


def phases(recorder: Recorder) -> list[tuple[str, int, int]]:
    """Name, step and micro-step of each phase."""
    found = handed_over(recorder, Phase)
    return [(phase.name, phase.step, phase.micro_step) for phase in found]


def test_backward_and_optimizer_step_are_phases(recorder: Recorder) -> None:
    model = nn.Linear(4, 4)
    optimizer = sgd(model)
    for _ in range(2):
        loss(model).backward()
        optimizer.step()
    assert phases(recorder) == [
        ("backward", 0, 0),
        ("step", 0, 0),
        ("backward", 1, 0),
        ("step", 1, 0),
    ]
    assert steps(recorder) == [1, 1]


def test_the_first_optimizer_step_starts_a_recording_without_any_collective(
    recorder: Recorder,
) -> None:
    recorder.recording = False  # as before the first collective
    model = nn.Linear(4, 4)
    optimizer = sgd(model)
    for _ in range(2):
        loss(model).backward()
        optimizer.step()
    assert phases(recorder) == [("step", 0, 0), ("backward", 1, 0), ("step", 1, 0)]
    assert steps(recorder) == [1, 1]


def test_each_backward_before_a_step_is_a_micro_step(recorder: Recorder) -> None:
    model = nn.Linear(4, 4)
    optimizer = sgd(model)
    for _ in range(2):
        for _ in range(3):
            loss(model).backward()
        optimizer.step()
    assert steps(recorder) == [3, 3]
    assert [micro for name, step, micro in phases(recorder) if step and name == "backward"] == [
        0,
        1,
        2,
    ]


def test_a_step_runs_forward_and_backward_in_its_closure(recorder: Recorder) -> None:
    """As Lightning does it, at the last micro-batch only."""
    model = nn.Linear(4, 4)
    optimizer = sgd(model)

    def closure() -> torch.Tensor:
        value = forward(recorder, model)
        value.backward()
        return value

    closure()
    optimizer.step(closure)
    assert phases(recorder) == [
        ("forward", 0, 0),
        ("backward", 0, 0),
        ("forward", 0, 1),
        ("backward", 0, 1),
        ("step", 0, 0),
    ]
    assert steps(recorder) == [2]


@pytest.mark.parametrize("is_training", [False, True])
def test_an_evaluation_between_backward_and_step_is_no_micro_step(
    recorder: Recorder, is_training: bool
) -> None:
    """As for the accuracy of a batch in training, with or without dropout."""
    model = nn.Linear(4, 4)
    optimizer = sgd(model)
    for _ in range(2):
        for _ in range(3):
            forward(recorder, model.train()).backward()
        with torch.set_grad_enabled(not is_training):
            forward(recorder, model.train(is_training))
        optimizer.step()
    assert steps(recorder) == [3, 3]
    first = [(name, micro_step) for name, step, micro_step in phases(recorder) if step == 0]
    assert first == [
        *((name, micro_step) for micro_step in range(3) for name in ("forward", "backward")),
        ("forward", 2),
        ("step", 2),
    ]


def test_optimizers_that_step_on_the_same_gradients_make_one_step(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizers = [sgd(part) for part in model]
    for _ in range(2):
        loss(model).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert steps(recorder) == [1, 1]


class Wrapper(torch.optim.Optimizer):
    """Steps another optimizer, as many libraries do it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: None = None) -> None:
        self.inner.step(closure)


def scaled(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)

    def step() -> None:
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()

    return step


def scheduled(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return lambda: (optimizer.step(), scheduler.step())


def sharded(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    parameters = optimizer.param_groups[0]["params"]
    return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1).step


@pytest.mark.parametrize("wrap", [lambda o: Wrapper(Wrapper(o)).step, sharded, scaled, scheduled])
def test_an_optimizer_inside_others_makes_one_step(
    recorder: Recorder, wrap: Callable[[torch.optim.Optimizer], Callable[[], object]]
) -> None:
    model = nn.Linear(4, 4)
    step = wrap(sgd(model))
    for _ in range(2):
        loss(model).backward()
        step()
    assert steps(recorder) == [1, 1]
    assert [name for name, _, _ in phases(recorder)] == ["backward", "step"] * 2


def test_a_step_that_makes_the_state_for_a_checkpoint_is_none(recorder: Recorder) -> None:
    """torch steps on gradients of zeros, so that there is a state to save or to load into."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    get_optimizer_state_dict(model, optimizer)
    assert optimizer.state
    assert steps(recorder) == []
    loss(model).backward()
    optimizer.step()
    assert steps(recorder) == [1]


def test_two_models_with_a_backward_each_make_two_steps(recorder: Recorder) -> None:
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    for model, optimizer in zip(models, map(sgd, models), strict=True):
        loss(model).backward()
        optimizer.step()
    assert steps(recorder) == [1, 1]


def test_optimizers_within_backward_make_one_step_at_its_end(recorder: Recorder) -> None:
    model = nn.Linear(4, 4)
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
    for _ in range(2):
        loss(model).backward()
    assert steps(recorder) == [1, 1]
    assert {name for name, _, _ in phases(recorder)} == {"backward"}


@pytest.mark.parametrize("has_another", [False, True])
def test_optimizers_within_autograd_grad_end_a_step_where_the_next_one_begins(
    recorder: Recorder, has_another: bool
) -> None:
    """One that steps afterwards ends it."""
    model = nn.Linear(4, 4)
    another = sgd(nn.Linear(4, 4))
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_hook(lambda _, own=own: own.step())
    for _ in range(3):
        torch.autograd.grad(loss(model), tuple(model.parameters()))
        if has_another:
            another.step()
    assert len(steps(recorder)) == (3 if has_another else 2)


def test_optimizers_within_a_backward_that_starts_the_recording_make_one_step(
    recorder: Recorder,
) -> None:
    def start_and_step(parameter: torch.Tensor) -> None:
        recorder.hot.recording = True
        own[parameter].step()

    model = nn.Linear(4, 4)
    own = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    for parameter in own:
        parameter.register_post_accumulate_grad_hook(start_and_step)
    recorder.hot.recording = False
    for _ in range(3):
        loss(model).backward()
    assert len(steps(recorder)) == 3


def test_a_backward_inside_of_a_backward_is_part_of_it(recorder: Recorder) -> None:
    model = nn.Linear(4, 4)
    inner = checkpoint(model, torch.ones(2, 4, requires_grad=True), use_reentrant=True)
    inner.sum().backward()
    assert phases(recorder) == [("backward", 0, 0)]


class Failing(torch.optim.SGD):
    """Raises once, as when it is out of memory, or interrupted by the user."""

    fails = True

    def step(self, closure: None = None) -> None:
        if self.fails:
            self.fails = False
            raise ValueError("no step")
        super().step(closure)


def failing(model: nn.Module) -> torch.optim.Optimizer:
    """Return one that has raised."""
    optimizer = Failing(model.parameters(), lr=0.1)
    loss(model).backward()
    with pytest.raises(ValueError, match="no step"):
        optimizer.step()
    return optimizer


def test_a_step_that_raised_leaves_no_phase_behind(recorder: Recorder) -> None:
    optimizer = failing(nn.Linear(4, 4))
    optimizer.step()
    assert recorder.progress.scope.phase == ""
    assert steps(recorder) == [1]


def test_after_a_step_that_raised_another_optimizer_counts(recorder: Recorder) -> None:
    """As after a search for the largest batch, or in a cell of a notebook that runs again."""
    failing(nn.Linear(4, 4))
    model = nn.Linear(4, 4)
    optimizer = sgd(model)
    for _ in range(2):
        forward(recorder, model).backward()
        optimizer.step()
    assert recorder.progress.scope.phase == ""
    assert len(steps(recorder)) == 2


@pytest.mark.parametrize("name", ["forward", "backward", "step"])
def test_what_follows_a_step_that_raised_is_not_in_it(recorder: Recorder, name: str) -> None:
    model, follower = nn.Linear(4, 4), sgd(nn.Linear(4, 4))
    value = loss(model)
    failing(nn.Linear(4, 4))
    run = {
        "forward": lambda: forward(recorder, model),
        "backward": value.backward,
        "step": follower.step,
    }
    run[name]()
    assert recorder.progress.scope.phase == ""
    assert [name for name, *_ in phases(recorder)] == ["backward", "step", name]


def test_an_inner_step_that_raised_does_not_hide_the_outer_one(recorder: Recorder) -> None:
    class Forgiving(Wrapper):
        def step(self, closure: None = None) -> None:
            with suppress(ValueError):
                self.inner.step()

    model = nn.Linear(4, 4)
    optimizer = Forgiving(Failing(model.parameters(), lr=0.1))
    for _ in range(2):
        loss(model).backward()
        optimizer.step()
    assert steps(recorder) == [1, 1]
    assert [name for name, *_ in phases(recorder)] == ["backward", "step"] * 2


def test_a_backward_that_raised_ends_its_phase(recorder: Recorder) -> None:
    with pytest.raises(RuntimeError):
        torch.ones(2).backward()
    assert phases(recorder) == [("backward", 0, 0)]
    assert recorder.progress.scope.phase == ""


def scripted(x: torch.Tensor) -> None:
    torch.autograd.backward([x.sum()])


def test_a_function_that_calls_backward_can_be_scripted(recorder: Recorder) -> None:
    x = torch.ones(2, requires_grad=True)
    torch.jit.script(scripted)(x)
    assert x.grad is not None


def test_a_hook_that_is_gone_leaves_nothing_in_the_compiler_of_scripts(recorder: Recorder) -> None:
    hook, before = TrainingLoopHook(recorder), dict(_builtins._get_builtin_table())
    hook.wrap(hook.targets[0], torch.autograd.backward)
    assert _builtins._get_builtin_table() != before
    hook.uninstall()
    assert _builtins._get_builtin_table() == before


def test_an_engine_marks_its_own_phases(recorder: Recorder) -> None:
    recorder.shared(Loop).has_engine = True
    recorder.progress.step_source = "deepspeed"
    model = nn.Linear(4, 4)
    loss(model).backward()
    sgd(model).step()
    assert not handed_over(recorder)


def test_what_runs_in_the_phases_of_an_engine_is_part_of_them(recorder: Recorder) -> None:
    """Also of one that was made before recording began."""
    progress, model = recorder.progress, nn.Linear(4, 4)
    progress.expect_steps_of("deepspeed")
    optimizer = sgd(model)
    for _ in range(3):
        backward = progress.enter("backward", 0)
        loss(model).backward()
        progress.leave(backward)
        step = progress.enter("step", 0)
        optimizer.step()
        progress.leave(step)
        progress.end_step("deepspeed", 0, 1)
    assert [name for name, *_ in phases(recorder)] == ["backward", "step"] * 3
    assert steps(recorder) == [1, 1, 1]
    assert recorder.failures == {}


def graphs(train: Callable[[], None]) -> tuple[int, int]:
    """Graphs that torch.compile made and breaks between them."""
    torch.compiler.reset()
    counters.clear()
    train()
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


@pytest.mark.parametrize("steps_inside", [False, True])
def test_compiled_training_has_the_graphs_that_it_has_without(
    install: Callable[..., Recorder], steps_inside: bool
) -> None:
    def train() -> None:
        model = nn.Linear(4, 4)
        optimizer = sgd(model)

        @torch.compile(backend="eager")
        def compiled() -> None:
            loss(model).backward()
            if steps_inside:
                optimizer.step()

        for _ in range(3):
            compiled()
            if not steps_inside:
                optimizer.step()

    bare = graphs(train)
    recorder = install(TrainingLoopHook)
    assert graphs(train) == bare
    assert bare[0] > 0
    assert [name for name, _, _ in phases(recorder)].count("backward") == 3
    assert steps(recorder) == ([] if steps_inside else [1, 1, 1])  # a traced step calls no hooks
