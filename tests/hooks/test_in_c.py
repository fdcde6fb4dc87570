"""What the hooks in C record is what those in Python do, also where nothing was compiled."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import os
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from dsprof.hooks.base import Hook
from dsprof.recording.recorder.hot_state import compiled
from dsprof.recording.recorder.recorder import Recorder
from tests.dist.launch import ROOT

KINDS = (
    *("collective", "wait", "request", "flush", "epilogue"),
    *("fetch start", "fetch stop", "release", "engine"),
)

PROGRAM = """
import sys

if sys.argv[1] == "Python":
    sys.modules["dsprof.recording.recorder._hot"] = None  # as if it were not there

import json, tempfile
from pathlib import Path

import deepspeed.runtime.zero.stage_1_and_2 as stage_1_and_2, torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof
from dsprof.recording.recorder.hot_state import compiled

assert (compiled is None) == (sys.argv[1] == "Python")


class Bucket:
    elements, params, index = 8, [1, 2], 1


class Optimizer(stage_1_and_2.DeepSpeedZeroOptimizer):
    partition_gradients, overlap_comm, reduce_bucket_size = True, True, 5e8
    ipg_buckets = {torch.float32: Bucket(), torch.bfloat16: Bucket()}

    def __init__(self):
        pass


def flush(self, comm_dtype=None):
    dist.all_reduce(torch.ones(8))


stage_1_and_2.DeepSpeedZeroOptimizer.reduce_ipg_grads = flush
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
folder = tempfile.TemporaryDirectory()
out = folder.name
dsprof.enable(out=out)
pair = dist.new_group([0, 1])
for step in range(3):
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX)
    works = [dist.all_reduce(torch.ones(3, dtype=torch.bfloat16), async_op=True) for _ in range(3)]
    dist.all_reduce(torch.ones(4), group=pair)
    works[1].wait()
    dist.all_gather_into_tensor(torch.ones(16), torch.ones(4), group=dist.group.WORLD)
    dist.reduce_scatter_tensor(torch.ones(4), torch.ones(16))
    dist.all_to_all_single(torch.ones(4), torch.ones(4))
    dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)])
    dist.broadcast(torch.ones(4), 2)
    dist.barrier()
    Optimizer().reduce_ipg_grads(comm_dtype=torch.float32)
    Optimizer().reduce_ipg_grads()
    with dsprof.annotate("mine"):
        dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (4,)))
    dsprof.step()
dsprof.disable()
[file] = Path(out).glob("*.json")
print("records", file.read_text())
"""


ENGINES = """
import sys

if sys.argv[1] == "Python":
    sys.modules["dsprof.recording.recorder._hot"] = None  # as if it were not there

import functools, tempfile, threading
from pathlib import Path

import torch, torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof
from dsprof.recording.recorder.hot_state import compiled

assert (compiled is None) == (sys.argv[1] == "Python")


class Methods:
    def forward(self, x, *, factor=1):
        reduce(self, "forward")
        return factor * x

    def backward(self, loss):
        self._backward_prologue()
        reduce(self, "backward")
        self._backward_epilogue()

    def _backward_prologue(self):
        pass

    def _backward_epilogue(self):
        pass

    def step(self):
        reduce(self, "step")
        self.taken += 1
        if self.taken % self.micro_steps == 0:
            self._take_model_step()

    def _take_model_step(self, lr_kwargs=None):
        reduce(self, "model step")


METHODS = {name: method for name, method in vars(Methods).items() if callable(method)}
for name, method in METHODS.items():
    setattr(DeepSpeedEngine, name, method)


class Engine:
    optimizer = None

    def __init__(self, micro_steps):
        self.module, self.micro_steps, self.taken = torch.nn.Linear(2, 2), micro_steps, 0
        self.training, self.fails, self.global_steps = True, "", 7

    def zero_offload_param(self):
        return None

    zero_offload_optimizer = zero_offload_param

    def __getattr__(self, name):
        if name not in METHODS:
            raise AttributeError(name)
        return functools.partial(getattr(DeepSpeedEngine, name), self)


def reduce(engine, phase):
    if engine.fails == phase:
        raise KeyError(phase)
    dist.all_reduce(torch.ones(1))


def train(engine, steps=1):
    for _ in range(steps * engine.micro_steps):
        assert engine.forward(3, factor=2) == 6
        engine.backward(None)
        engine.step()


def fail(engine, phase):
    engine.fails = phase
    try:
        train(engine)
    except KeyError as error:
        assert error.args == (phase,) and error.__context__ is None
        engine.fails = ""
    else:
        raise AssertionError("an exception is lost")


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
first, second = Engine(2), Engine(1)
for trace in range(2):
    folder = tempfile.TemporaryDirectory()
    out = folder.name
    dsprof.enable(out=out)
    train(first, 4)
    train(second, 4)
    for _ in range(2):
        train(first)
        train(second)
    for phase in ("forward", "backward", "step", "model step"):
        fail(second, phase)
        train(second)
    first.forward(1)
    first._backward_prologue()  # by loss.backward()
    first.training = False
    first.forward(1)  # of an evaluation
    second.forward(1)  # of another engine within
    first.training = True
    first._backward_epilogue()
    first.forward(1)
    first.backward(None)
    first.step()
    first._backward_prologue()  # which raises
    train(first)
    first.forward(1)
    with dsprof.annotate("mine"):
        second._take_model_step()  # as pipelines do
    thread = threading.Thread(target=train, args=(second, 2))
    thread.start()
    thread.join()
    dsprof.disable()
    [file] = Path(out).glob("*.json")
    print("records", file.read_text())
    train(second)  # while nothing is recorded
"""


def records(way: str, program: str = PROGRAM) -> list[dict[str, Any]]:
    """Return what a program leaves in its trace: no times, which no two runs share.

    In no order of the file either: that depends on when the writer takes what.
    """
    command = [sys.executable, "-W", "ignore", "-c", program, way]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.partition("records ")[2].splitlines()
    events = [json.loads(line.strip("[,]")) for line in lines if line.startswith('{"cat"')]
    kept = ("comm", "flush", "step", "user", "group", "phase")
    return sorted((_plain(event) for event in events if event["cat"] in kept), key=repr)


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    args = {name: value for name, value in event["args"].items() if not name.endswith("_ns")}
    has = {f"has {name}" for name in event["args"] if name.endswith("_ns")}
    return {"name": event["name"], **args, **dict.fromkeys(sorted(has), True)}


OLDER = """
import sys, types

sys.modules["dsprof.recording.recorder._hot"] = types.ModuleType("_hot")

from dsprof.recording.recorder.hot_state import HotState, compiled

print(compiled, HotState.__module__)
"""


def test_an_extension_of_older_sources_is_left_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OLDER], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["None", "dsprof.recording.recorder.hot_state"]


def test_both_record_the_same() -> None:
    in_c, in_python = records("C"), records("Python")
    assert len(in_c) > 40
    for mine, other in zip(in_c, in_python, strict=True):
        assert mine == other


def test_both_record_the_same_of_engines() -> None:
    in_c, in_python = records("C", ENGINES), records("Python", ENGINES)
    assert len(in_c) > 200
    for mine, other in zip(in_c, in_python, strict=True):
        assert mine == other


class Plain(Hook):
    """Has no targets."""

    name = "plain"


def test_while_nothing_is_recorded_a_call_is_passed_on_as_it_is() -> None:
    def given(*args: Any, **kwargs: Any) -> Any:
        if "error" in kwargs:
            raise kwargs["error"]
        return args, kwargs

    hook = Plain(Recorder(lambda: True))
    many = {str(number): number for number in range(20)}
    for kind in KINDS:
        owner = type("Owner", (), {"method": hook.in_c(kind, given, given, (), (1, 0, 31, 7))})()
        assert owner.method() == ((owner,), {})
        assert owner.method(1, *(2, 3), a=4, b=5) == ((owner, 1, 2, 3), {"a": 4, "b": 5})
        assert owner.method(*range(20), **many) == ((owner, *range(20)), many)
        assert type(owner).method(owner, 1) == ((owner, 1), {})
        with pytest.raises(KeyError, match="mine"):
            owner.method(error=KeyError("mine"))


@pytest.mark.skipif(compiled is None, reason="nothing was compiled")
def test_a_kind_of_wrapper_that_is_none() -> None:
    with pytest.raises(ValueError, match="no kind of wrapper named nothing"):
        Plain(Recorder(lambda: True)).in_c("nothing", print, print, ())


def method(self: Any, value: int = 0, /, *, other: int = 0) -> tuple[Any, int, int]:
    """Of a class whose methods are hooked."""
    return self, value, other


@pytest.fixture
def owner() -> type:
    hook = Plain(Recorder(lambda: True))
    owner = type("Owner", (), {"method": hook.in_c("engine", method, method, (), (1, 0, 31, 7))})
    assert compiled is None or not inspect.isfunction(owner.method)  # type: ignore[attr-defined]
    return owner


def test_a_method_that_is_taken_from_its_class_can_be_put_back(owner: Any) -> None:
    saved = owner.method
    owner.method = lambda self, value: saved(self, value)
    one = owner()
    assert one.method(1) == (one, 1, 0)
    owner.method = saved
    assert one.method(1, other=2) == (one, 1, 2)
    assert owner.method(one, 3) == (one, 3, 0)


def test_a_method_that_was_put_back_is_called_in_compiled_code_as_a_method(owner: Any) -> None:
    owner.method = owner.method
    one = owner()
    compiled_call = torch.compile(lambda value: one.method(value)[1] + 1, backend="eager")
    assert compiled_call(torch.ones(2)).tolist() == [2, 2]


def test_a_method_can_be_given_to_another_class(owner: Any) -> None:
    class Other:
        alias = owner.method
        partial = functools.partialmethod(owner.method, 5)

    other = Other()
    assert other.alias(4) == (other, 4, 0)
    assert other.partial() == (other, 5, 0)
    assert inspect.ismethod(other.alias)
    assert owner.method.__get__(other, Other)(6) == (other, 6, 0)


@pytest.mark.skipif(compiled is None, reason="nothing was compiled")
def test_what_does_not_bind_by_itself_does_not_in_another_class() -> None:
    hook = Plain(Recorder(lambda: True))
    owner: Any = type("Owner", (), {"length": hook.in_c("wait", len, len, (), (1, 0, 31, 7))})
    other: Any = type("Other", (), {"length": owner.length})
    assert other().length("four") == 4


def test_a_method_does_what_any_function_does(owner: Any) -> None:
    one, taken = owner(), owner.method
    assert weakref.WeakMethod(one.method)() == one.method
    assert weakref.ref(taken)() is taken
    taken.mark = 1
    assert owner.method.mark == 1
    del taken.mark
    assert not hasattr(method, "mark")
    assert copy.copy(taken) is copy.deepcopy([taken])[0] is taken
    assert inspect.isroutine(taken)
    assert inspect.signature(one.method) == inspect.signature(method.__get__(one))
    assert inspect.getdoc(taken) == method.__doc__


def test_a_method_is_pickled_by_its_name(monkeypatch: pytest.MonkeyPatch, owner: Any) -> None:
    taken = owner.method
    monkeypatch.setattr(sys.modules[__name__], "method", taken)
    assert pickle.loads(pickle.dumps(taken)) is taken


AGAIN = """
import importlib, sys
import dsprof.trace

module = "dsprof.recording.recorder._hot"
sys.modules["dsprof.trace.schema"] = None  # as when an interrupt ends its import
for _ in range(2):
    try:
        importlib.import_module(module)
    except ImportError:
        pass
del sys.modules["dsprof.trace.schema"]
importlib.import_module(module)
from dsprof.recording.recorder.hot_state import HotState

assert HotState.__module__ == module and "next_step" in dir(HotState), HotState
"""


@pytest.mark.skipif(compiled is None, reason="nothing was compiled")
def test_a_failed_import_can_be_repeated() -> None:
    done = subprocess.run([sys.executable, "-c", AGAIN], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


TAKEN = """
import torch, torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof, sys

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
dsprof.enable(out=sys.argv[1], interception="process_group")


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        del args
        tensors.clear()
        return result


for _ in range(20):
    tensors = [torch.ones(4), torch.ones(4)]
    with Mode():
        try:
            dist.group.WORLD.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions())
        except NotImplementedError:
            pass  # there is no tensor left
"""


def test_a_mode_of_torch_may_take_the_tensors_of_a_call(tmp_path: Path) -> None:
    tunables = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.perturb=165"}
    filled = {"PYTHONMALLOC": "malloc", **tunables}  # what is freed is overwritten
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TAKEN, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | filled,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
