"""What hooks replace, beside other tools and where a target is missing."""

from __future__ import annotations

import time
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

import dsprof
from dsprof.hooks import registry
from dsprof.hooks.base import Hook, Target
from dsprof.recording import session
from dsprof.trace.schema import HookStatus
from tests.factories.foreign_kernel import foreign_kernel
from tests.recording.session.fake_group import communicate, read


def targets() -> dict[tuple[str, str, str], Any]:
    """Return what stands under each name that any hook replaces."""
    import deepspeed  # noqa: F401 - so that its hooks go in, too

    from dsprof.hooks.registry import WIRE_HOOKS, hooks_for

    found = {}
    for hook in (kind for way in WIRE_HOOKS for kind in hooks_for(way, in_cpp=True)):
        for target in hook.targets:
            if target.is_there():
                owner = target.resolve()
                found[target.module, target.owner, target.name] = vars(owner).get(target.name)
    return found


@pytest.mark.parametrize("interception", ["auto", "dispatcher", "native", "process_group"])
def test_after_disable_every_attribute_is_the_object_that_it_was(
    tmp_path: Path, interception: str
) -> None:
    before = targets()
    assert len(before) > 50
    dsprof.enable(out=str(tmp_path), interception=interception)
    communicate()
    during = targets()
    assert any(during[name] is not before[name] for name in before)
    dsprof.disable()
    after = targets()
    assert [name for name in before if after[name] is not before[name]] == []


def test_enable_twice_is_enable_once(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    once = targets()
    dsprof.enable(out=str(tmp_path / "other"))
    assert all(value is once[name] for name, value in targets().items())
    communicate(3)
    dsprof.disable()
    assert len(read(tmp_path).collectives) == 3
    assert not (tmp_path / "other").exists()


class OtherTool:
    """Wraps names that dsprof wraps, and puts back what it found there."""

    def __init__(self) -> None:
        from deepspeed.runtime.engine import DeepSpeedEngine

        self.names = (
            (dist.Work, "wait"),
            (dist.ProcessGroup, "allreduce"),
            (DeepSpeedEngine, "forward"),
            (DeepSpeedEngine, "step"),
        )
        self.calls = 0

    def found(self) -> list[Any]:
        return [vars(owner)[name] for owner, name in self.names]

    def on(self) -> None:
        self.before = self.found()
        for owner, name in self.names:
            setattr(owner, name, self.wrap(getattr(owner, name)))

    def wrap(self, original: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return original(*args, **kwargs)

        return wrapper

    def off(self) -> None:
        for (owner, name), raw in zip(self.names, self.before, strict=True):
            setattr(owner, name, raw)


ORDERS = [
    order
    for order in permutations(("tool on", "dsprof on", "tool off", "dsprof off"))
    if order.index("tool on") < order.index("tool off")
    and order.index("dsprof on") < order.index("dsprof off")
]


@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_beside_a_tool_that_wraps_the_same_names(tmp_path: Path, order: tuple[str, ...]) -> None:
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tool = OtherTool()
    originals, on, recorded = tool.found(), set[str](), 0
    act = {
        "tool on": tool.on,
        "tool off": tool.off,
        "dsprof on": lambda: dsprof.enable(out=str(tmp_path), interception="process_group"),
        "dsprof off": dsprof.disable,
    }
    for what in order:
        act[what]()
        who, state = what.split()
        on = on | {who} if state == "on" else on - {who}
        tool.calls = 0
        dist.group.WORLD.allreduce(torch.ones(4)).wait()
        assert tool.calls == (2 if "tool" in on else 0), what
        # A tool that puts the originals back while dsprof is on takes dsprof's wrapper away.
        is_taken_away = order[:3] == ("tool on", "dsprof on", "tool off")
        recorded += "dsprof" in on and not (is_taken_away and "tool" not in on)
    assert len(read(tmp_path).collectives) == recorded
    if order == ("dsprof on", "tool on", "dsprof off", "tool off"):
        # The tool put our inert wrapper back: it had found it there.
        assert not any(now is raw for now, raw in zip(tool.found(), originals, strict=True))
        for (owner, name), raw in zip(tool.names, originals, strict=True):
            setattr(owner, name, raw)
    assert all(now is raw for now, raw in zip(tool.found(), originals, strict=True))


def test_a_foreign_wrapper_keeps_working_after_disable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = vars(dist.Work)["wait"]
    dsprof.enable(out=str(tmp_path))
    ours = dist.Work.wait
    calls = []

    def foreign(self: Any, *args: Any) -> Any:
        calls.append(self)
        return ours(self, *args)

    monkeypatch.setattr(dist.Work, "wait", foreign)
    communicate()
    dsprof.disable()
    assert vars(dist.Work)["wait"] is foreign
    assert any("Work.wait" in note.text for note in read(tmp_path).notes)
    communicate()
    monkeypatch.setattr(dist.Work, "wait", original)


def test_where_another_tool_holds_the_dispatcher_the_class_is_patched(tmp_path: Path) -> None:
    with foreign_kernel():
        dsprof.enable(out=str(tmp_path), interception="dispatcher")
        communicate(2)
        dsprof.disable()
    trace = read(tmp_path)
    assert len(trace.collectives) == 2
    assert trace.trailer is not None
    assert trace.trailer.failed_hooks == {}
    assert [hook.why for hook in trace.hooks if hook.why] == [
        "collectives that C++ issues are not recorded: "
        "another tool holds the BackendSelect kernel of c10d::allreduce_"
    ]
    assert sum(hook.installed for hook in trace.hooks if hook.name == "c10d") == 1


def test_a_hook_that_breaks_is_in_the_trace_before_its_end(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    communicate()
    live = session.current()
    assert live is not None
    live.recorder.fail("fsdp", ValueError("renamed"))
    live.recorder.fail("fsdp", ValueError("again"))
    deadline = time.monotonic() + 60
    writer = live.writer
    while writer is None or writer.events < 3:  # the file is there
        assert time.monotonic() < deadline
        writer = live.writer
    while not any(hook.why for hook in read(tmp_path).hooks):  # the writer's next turn
        assert time.monotonic() < deadline
    broken = [(hook.name, hook.why) for hook in read(tmp_path).hooks if hook.why]
    assert broken == [("fsdp", "ValueError: renamed")]
    dsprof.disable()


class Half(Hook):
    """A hook that does something beside its targets."""

    name = "half"
    targets = (Target("torch.distributed", "Work", "renamed_in_a_later_release", "a test"),)
    kept: ClassVar[list[str]] = []

    def install(self, module: str) -> None:
        self.kept.append(module)

    def uninstall(self) -> None:
        self.kept.clear()


def record_with(kind: type[Hook], folder: Path, monkeypatch: pytest.MonkeyPatch) -> HookStatus:
    """Record one collective with one more hook; return what the trace says of that."""
    monkeypatch.setattr(registry, "HOOKS", (*registry.HOOKS, kind))
    dsprof.enable(out=str(folder))
    communicate()
    installed = list(Half.kept)
    dsprof.disable()
    assert installed == []
    (status,) = [hook for hook in read(folder).hooks if hook.name == kind.name]
    return status


def test_a_hook_whose_target_is_missing_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nowhere(Half):
        def install(self, module: str) -> None:
            raise AssertionError("installed without its target")

    status = record_with(Nowhere, tmp_path, monkeypatch)
    assert (status.installed, "renamed_in_a_later_release" in status.why) == (False, True)


def test_a_hook_that_is_half_installed_is_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Half):
        targets = (Target("torch.distributed", "Work", "wait", "a test"),)

        def wrap(self, target: Target, original: Any) -> Any:
            raise RuntimeError("no way to wrap it")

    status = record_with(Broken, tmp_path, monkeypatch)
    assert (status.installed, status.why) == (False, "no way to wrap it")


@pytest.mark.parametrize("since", ["", "1000000"])
def test_a_module_that_a_release_does_not_have_is_named_unless_it_is_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    class Moved(Half):
        targets = (
            Target("torch.distributed.moved.inner", "Unit", "gather", "a test", "gathers", since),
        )

    status = record_with(Moved, tmp_path, monkeypatch)
    lacks = f"gathers are not recorded: torch {torch.__version__} has no Unit.gather"
    assert (status.installed, status.why) == (False, "" if since else lacks)
