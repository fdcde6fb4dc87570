"""A hook that no longer fits its library goes off alone, says so once, and never harms a call."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import deepspeed.runtime.zero.stage3  # noqa: F401 - so that its hooks go in, too
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof
from dsprof.hooks.base import Hook, Target
from dsprof.hooks.deepspeed.fetch import _WAITS
from dsprof.hooks.deepspeed.pipeline import INSTRUCTIONS
from dsprof.hooks.device.cuda import CudaHook
from dsprof.hooks.registry import hooks_for
from dsprof.hooks.wire.interception import CompleteHook
from dsprof.hooks.wire.native import NativeHook
from dsprof.recording.recorder.hot_state import NOBODY
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from dsprof.trace.schema import FILE_PATTERN
from tests.cli.command import dsprof as command
from tests.handed_over import handed_over

WAYS = [
    *((way, hooks_for(way, in_cpp=False)) for way in ("auto", "dispatcher", "process_group")),
    *((way, hooks_for(way, in_cpp=True)) for way in ("auto", "native")),
]
INTERCEPTIONS = {kinds[0]: way for way, kinds in WAYS}
KINDS = tuple(dict.fromkeys(kind for _, kinds in WAYS for kind in kinds))
TARGETS = [
    pytest.param(kind, at, id=f"{kind.__name__}-{target.owner}.{target.name}")
    for kind in KINDS
    for at, target in enumerate(kind.targets)
]


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dsprof.disable()
    dist.destroy_process_group()


def recorded(folder: Path, interception: str) -> RankTrace:
    """Record two collectives and a step."""
    dsprof.enable(out=str(folder), interception=interception)
    dist.all_reduce(torch.ones(4))
    dist.broadcast(torch.ones(4), 0)
    dsprof.step()
    dsprof.disable()
    [file] = folder.glob(FILE_PATTERN)
    return read_trace(file)


def off(trace: RankTrace) -> set[tuple[str, str]]:
    """Return the parts of hooks that were not in place."""
    return {(hook.name, hook.module) for hook in trace.hooks if not hook.installed}


@pytest.fixture(scope="module")
def off_before(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], set[tuple[str, str]]]:
    for target in (target for kind in KINDS for target in kind.targets):
        target.is_there()  # loads its module, so that the hook is asked for in each recording
    return cache(lambda way: off(recorded(tmp_path_factory.mktemp("before"), way)))


@pytest.mark.parametrize(("kind", "at"), TARGETS)
def test_a_renamed_attribute_is_named_with_what_it_costs_and_harms_no_other_hook(
    tmp_path: Path,
    off_before: Callable[[str], set[tuple[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: type[Hook],
    at: int,
) -> None:
    target = kind.targets[at]
    others = [t for t in kind.targets[:at] + kind.targets[at + 1 :] if t.needs == target.needs]
    has_another = any(t.carries == target.carries and t.is_there() for t in others)
    is_wanted = target.is_there() and (kind is not CudaHook or torch.backends.cuda.is_built())
    sees_below = kind in (CompleteHook, NativeHook)
    gone = dataclasses.replace(target, name="renamed_in_a_later_release")
    interception = INTERCEPTIONS.get(kind, "dispatcher")
    before = off_before(interception)
    capfd.readouterr()
    monkeypatch.setattr(kind, "targets", (*kind.targets[:at], gone, *kind.targets[at + 1 :]))
    trace = recorded(tmp_path, interception)
    said = capfd.readouterr().err.count("renamed_in_a_later_release")
    is_lost = is_wanted and not sees_below and not (target.carries and has_another)
    is_off = is_lost and not (target.carries and any(t.is_there() for t in others))
    assert said == is_lost
    assert off(trace) == before | ({(kind.name, gone.needs)} if is_off else set())
    lost = [text for hook in trace.hooks for text in (hook.why, *hook.lost)]
    sentences = [text for text in lost if text.startswith(f"{target.carries} are not recorded: ")]
    assert len(sentences) == (is_lost and bool(target.carries))
    found = {trace.collectives.words[code] for code in trace.collectives.op}
    own = {"allreduce": "all_reduce"}.get(target.name, target.name)
    assert {"all_reduce", "broadcast"} - found <= ({own} if kind in INTERCEPTIONS else set())
    assert [step.source for step in trace.steps] == ["user"]


def test_the_report_says_which_hook_is_off_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsprof.hooks.deepspeed.engine import DeepSpeedEngineHook as Kind

    first = dataclasses.replace(Kind.targets[-1], name="renamed_in_a_later_release")
    monkeypatch.setattr(Kind, "targets", (first, *Kind.targets[1:]))
    dsprof.enable(out=str(tmp_path))
    dist.all_reduce(torch.ones(4))
    dsprof.disable()
    done = command("report", tmp_path, "--format", "json", "-o", "-", cwd=tmp_path)
    [note] = json.loads(done.stdout)["quality"]["hooks"]
    assert (note["name"], note["ranks"]) == ("deepspeed.engine", [0])
    assert "renamed_in_a_later_release" in note["why"]


class Broken(Recorder):
    """A recorder none of whose parts works, although it records."""

    def __init__(self) -> None:
        super().__init__(lambda: True)
        self.recording = True

    def break_down(self) -> None:
        parts = (self.outbox, self.progress, self.contexts, self.cost, *self._shared.values())
        for part in (*parts, self):
            for name in vars(part).keys() - {"hot", "_hot", "stopped", "failures"}:
                setattr(part, name, None)
        for name in ("ids", "works", "blocking", "records", "overflow"):
            setattr(self.hot, name, None)


CALLS: dict[str, tuple[Any, ...]] = {
    "start_event": (object(), "forward_fetch_submit"),
    "stop_event": (object(), "forward_fetch_submit", 1),
}


def wrap(hook: Hook, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as the hook would; the one in a table of functions, too."""
    if target.name == INSTRUCTIONS:
        return hook.wrap(target, {object: original})[object]  # type: ignore[arg-type, index]
    return hook.wrap(target, original)


@pytest.mark.parametrize(("kind", "at"), TARGETS)
def test_a_hook_that_breaks_inside_leaves_every_call_as_it_was(kind: type[Hook], at: int) -> None:
    recorder, calls, result = Broken(), [], object()
    hook = kind(recorder)
    target: Target = kind.targets[at]

    def original(*args: Any, **kwargs: Any) -> object:
        calls.append((args, kwargs))
        if len(calls) == 5:
            raise ConnectionError("of the original")
        return result

    wrapped = wrap(hook, target, original)
    recorder.break_down()
    args = CALLS.get(target.name, (object(),))
    for _ in range(4):
        assert wrapped(*args) in ((None, result) if target.name == "__init__" else (result,))
    with pytest.raises(ConnectionError, match="of the original"):
        wrapped(*args)
    assert calls == [(args, {})] * 5
    assert set(recorder.failures) <= {hook.name}


def test_no_hook_asks_the_time_or_takes_a_number_while_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    for name, module in list(sys.modules.items()):
        if name.startswith("dsprof.hooks.") and hasattr(module, "clock"):
            monkeypatch.setattr(module, "clock", lambda name=name: asked.append(name) or 0)
    recorder = Recorder(lambda: True)
    recorder.stop()
    for kind in KINDS:
        hook = kind(recorder)
        for target in kind.targets:
            wrapped = wrap(hook, target, lambda *args, **kwargs: None)
            calls = [CALLS.get(target.name, (object(),))]
            if target.name == "start_event":
                calls += [(object(), name) for name in _WAITS]
            for args in calls:
                wrapped(*args)
    assert asked == []
    assert next(recorder.ids) == 1
    assert recorder.contexts.current() is NOBODY
    assert (handed_over(recorder), recorder.failures) == ([], {})
