"""A session from enable to disable, in one process over torch's fake backend."""

from __future__ import annotations

import asyncio
import errno
import inspect
import io
import os
import shutil
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from itertools import permutations
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof
from dsprof.analysis.rank.steps import counted_steps
from dsprof.environment import EnvSnapshot
from dsprof.errors import ConfigError
from dsprof.hooks import registry
from dsprof.hooks.base import Hook, Target
from dsprof.recording import beside, session
from dsprof.recording.watchdog.thread import Watchdog
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_header, read_trace
from dsprof.trace.schema import FILE_PATTERN, NEW_GROUP, HookStatus
from dsprof.trace.writing.writer import write_environment
from tests.factories.foreign_kernel import foreign_kernel
from tests.factories.trace import header


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dsprof.disable()
    if dist.is_initialized():
        dist.destroy_process_group()


def communicate(times: int = 1) -> None:
    for _ in range(times):
        dist.all_reduce(torch.zeros(4))


def read(folder: Path) -> RankTrace:
    (file,) = folder.glob(FILE_PATTERN)
    return read_trace(file)


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


def test_enable_disable_enable_are_two_traces(tmp_path: Path) -> None:
    for count in (2, 5):
        dsprof.enable(out=str(tmp_path))
        communicate(count)
        dsprof.disable()
        communicate()
    counts = [len(read_trace(file).collectives) for file in sorted(tmp_path.glob(FILE_PATTERN))]
    assert sorted(counts) == [2, 5]


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


def become(rank: int, world_size: int) -> None:
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def test_each_process_group_that_a_process_is_in_has_a_trace_of_its_own(
    tmp_path: Path,
) -> None:
    dsprof.enable(out=str(tmp_path))
    for _ in range(3):
        communicate()
        dsprof.step()
    unfinished = dist.all_reduce(torch.zeros(4), async_op=True)
    become(rank=2, world_size=4)
    communicate(2)
    dsprof.step()
    become(rank=2, world_size=4)
    communicate()
    become(rank=2, world_size=3)
    communicate(5)
    unfinished.wait()
    dsprof.disable()
    traces = [read_trace(file) for file in tmp_path.glob(FILE_PATTERN)]
    traces.sort(key=lambda trace: trace.header.started_monotonic_ns)
    worlds = [(trace.header.rank, trace.header.world_size) for trace in traces]
    assert worlds == [(1, 4), (2, 4), (2, 4), (2, 3)]
    assert len({trace.header.run_key for trace in traces}) == 2
    assert len({trace.header.job_keys[0] for trace in traces}) == 1
    assert [len(trace.collectives) for trace in traces] == [4, 2, 1, 5]
    assert [[s.step for s in trace.steps] for trace in traces] == [[0, 1, 2], [0], [], []]
    reasons = [trace.trailer.reason for trace in traces if trace.trailer is not None]
    assert reasons == ["became rank 2 of 4", NEW_GROUP, "became rank 2 of 3", "disable"]
    for trace in traces:
        comm = trace.collectives
        assert (comm.issue_ns >= 0).all()
        assert set(comm.group) <= set(trace.groups)
        assert set(comm.site) <= set(trace.sites)
        assert {tuple(group.ranks) for group in trace.groups.values()} == {
            tuple(range(trace.header.world_size))
        }
        assert any(hook.name == "world" and hook.installed for hook in trace.hooks)
        assert trace.environment is not None


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


def test_steps_annotations_and_phases_of_the_user(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    for _ in range(3):
        communicate()
        with dsprof.annotate("data"):
            pass
        dsprof.step()
    dsprof.disable()
    trace = read(tmp_path)
    assert [(step.step, step.source) for step in trace.steps] == [(n, "user") for n in range(3)]
    assert [span.name for span in trace.spans if span.is_annotation] == ["data"] * 3


def spans_of(folder: Path) -> list[tuple[str, int, int]]:
    """Return the annotated spans, by their begin."""
    spans = [span for span in read(folder).spans if span.is_annotation]
    return sorted(((span.name, span.start_ns, span.end_ns) for span in spans), key=itemgetter(1))


def test_an_annotation_is_used_again_inside_itself_and_in_another_thread(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    communicate()
    span = dsprof.annotate("data")

    def nested() -> None:
        with span, span:
            pass

    nested()
    with span:
        other = threading.Thread(target=nested)
        other.start()
        other.join()
    dsprof.disable()
    with span:
        pass
    first, inner, around, *others = spans_of(tmp_path)
    assert first[2] >= inner[2]
    assert len(others) == 2
    assert all(around[2] > end_ns for _, _, end_ns in others)


def test_an_annotation_that_another_thread_leaves_does_no_harm(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    communicate()
    span = dsprof.annotate("data")
    span.__enter__()
    errors: list[BaseException] = []

    def leave() -> None:
        try:
            span.__exit__(None, None, None)
        except BaseException as error:
            errors.append(error)

    other = threading.Thread(target=leave)
    other.start()
    other.join()
    assert errors == []
    span.__exit__(None, None, None)
    dsprof.disable()
    assert len(spans_of(tmp_path)) == 1


def test_decorated_coroutines_and_generators_are_timed_while_they_run(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    communicate()

    async def wait() -> None:
        with dsprof.annotate("inside"):
            await asyncio.sleep(0)

    @dsprof.annotate("coroutine")
    async def load() -> str:
        await wait()
        return "loaded"

    @dsprof.annotate("generator")
    def batches() -> Generator[int, str, str]:
        with dsprof.annotate("inside"):
            pass
        try:
            answer = yield 1
        except KeyError:
            answer = yield 2
        return answer

    @dsprof.annotate("asynchronous generator")
    async def both() -> AsyncGenerator[int, None]:
        yield 1

    assert asyncio.run(load()) == "loaded"
    source = batches()
    assert next(source) == 1
    with dsprof.annotate("outside"):
        pass
    assert source.throw(KeyError()) == 2
    with pytest.raises(StopIteration) as ended:
        source.send("answer")
    assert ended.value.value == "answer"
    assert inspect.isasyncgenfunction(both)
    batches().close()
    dsprof.disable()
    spans = spans_of(tmp_path)
    names = [name for name, *_ in spans]
    runs = ["generator", "inside", "outside", "generator", "generator"]
    assert names == ["coroutine", "inside", *runs]
    assert all(outer[2] >= inner[2] for outer, inner in (spans[:2], spans[2:4]))


def test_steps_without_collectives_count_once_a_group_is_up(tmp_path: Path) -> None:
    dist.destroy_process_group()
    dsprof.enable(out=str(tmp_path))
    dsprof.step()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    for _ in range(3):
        dsprof.step()  # the first one begins the recording
    dsprof.disable()
    assert [step.source for step in read(tmp_path).steps] == ["user", "user"]


def test_steps_before_torch_is_loaded_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dist.destroy_process_group()
    dsprof.enable(out=str(tmp_path))
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch.distributed")
        dsprof.step()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    communicate()
    dsprof.disable()
    assert "nothing was recorded" not in capfd.readouterr().err
    assert len(read(tmp_path).collectives) == 1


def test_without_a_session_step_and_annotate_do_nothing() -> None:
    dsprof.step()
    with dsprof.annotate("data"):
        pass
    dsprof.disable()


def test_optimizer_steps_count_where_nothing_else_does(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    communicate()
    for _ in range(2):
        weight.grad = torch.ones(2)
        optimizer.step()
    dsprof.disable()
    assert [step.source for step in read(tmp_path).steps] == ["optimizer", "optimizer"]
    optimizer.step()


def test_a_wrong_option_raises_and_leaves_nothing_on() -> None:
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        dsprof.enable(step=3)
    assert session.current() is None


def test_the_trace_describes_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("MY_SECRET", "do not read me")
    dsprof.enable(out=str(tmp_path))
    communicate()
    dsprof.disable()
    trace = read(tmp_path)
    assert (trace.header.rank, trace.header.world_size, trace.header.backend) == (1, 4, "fake")
    assert trace.environment is not None
    assert trace.environment.variables["NCCL_DEBUG"] == "WARN"
    assert b"do not read me" not in Path(trace.path).read_bytes()
    assert trace.trailer is not None
    assert trace.trailer.reason == "disable"
    assert all(
        hook.installed for hook in trace.hooks if hook.name in ("c10d", "work", "torch.loop")
    )


def test_anonymize(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path), anonymize=True)
    communicate()
    dsprof.disable()
    trace = read(tmp_path)
    data = Path(trace.path).read_text()
    assert trace.header.anonymized
    assert os.uname().nodename not in trace.header.host
    assert str(Path(__file__).parent) not in data
    assert "test_session.py" in data


def test_a_forked_child_records_nothing(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    communicate()
    child = os.fork()
    if child == 0:
        communicate(10)
        os._exit(0 if session.current() is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dsprof.disable()
    assert len(read(tmp_path).collectives) == 1


def test_a_group_that_is_made_again_and_again_fills_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_MOST_TRACES", 2)
    dsprof.enable(out=str(tmp_path))
    for _ in range(4):
        communicate()
        become(rank=1, world_size=4)
    communicate()
    dsprof.disable()
    traces = [read_trace(file) for file in sorted(tmp_path.glob(FILE_PATTERN))]
    assert sorted(len(trace.collectives) for trace in traces) == [1, 4]


@pytest.mark.parametrize("folder", ["runs", "tmpwdpex_7z"])
def test_rank_zero_says_what_to_do_next(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], folder: str
) -> None:
    """Also where the name of the folder could announce a secret."""
    tmp_path /= folder
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    dsprof.enable(out=str(tmp_path))
    communicate()
    dsprof.step()
    dsprof.disable()
    (line,) = capfd.readouterr().err.splitlines()
    assert line == (
        f"dsprof: steps recorded: 1, trace files: 1; see them with: dsprof report {tmp_path}"
    )


def test_rank_zero_says_how_many_steps_are_in_counters_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    dsprof.enable(out=str(tmp_path), steps=1)
    for _ in range(3):
        communicate()
        dsprof.step()
    dsprof.disable()
    said = capfd.readouterr().err
    assert said.startswith("dsprof: steps recorded: 3 (2 of them only in counters), trace files")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"mode": "always", "start_step": 2, "steps": 1, "every": 2},
            "start_step, steps and every are ignored: mode: always records all steps",
        ),
        (
            {"capture_profiler": True},
            "capture_profiler is ignored: only mode: always has captures",
        ),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_zero_says_which_settings_do_nothing(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    options: dict[str, Any],
    said: str,
    rank: int,
) -> None:
    become(rank=rank, world_size=2)
    dsprof.enable(out=str(tmp_path), **options)
    for _ in range(3):
        communicate()
        dsprof.step()
    become(rank=rank, world_size=2)
    communicate()
    dsprof.disable()
    lines = capfd.readouterr().err.splitlines()
    assert lines.count(f"dsprof: {said}") == (rank == 0)


def test_always_counts_no_step_only_because_of_the_window(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path), mode="always", start_step=2, steps=1)
    for _ in range(3):
        communicate()
        dsprof.step()
    dsprof.disable()
    assert [*counted_steps(read(tmp_path))] == []


def test_an_unwritable_folder_is_said_and_the_run_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    dsprof.enable(out=str(tmp_path / "file"))
    communicate(3)
    dsprof.disable()
    said = f"dsprof: rank {dist.get_rank()} records nothing in {tmp_path / 'file'}: File exists\n"
    assert capfd.readouterr().err == said


def test_why_nothing_was_recorded_is_said_in_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> str:
        raise OSError("too many open files")

    monkeypatch.setattr(session.environment, "boot_id", fails)
    dsprof.enable(out=str(tmp_path))
    communicate()
    dsprof.disable()
    said = capfd.readouterr().err
    assert said == "dsprof: nothing was recorded: OSError: too many open files\n"


def test_a_hook_that_failed_is_not_said_to_be_why_nothing_was_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    dist.destroy_process_group()
    dsprof.enable(out=str(tmp_path), interception="native")
    dsprof.disable()
    said = capfd.readouterr().err
    assert said.startswith("dsprof: nothing was recorded. Failed hooks: native: RuntimeError: no ")


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


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_removed_folder_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_taken: bool
) -> None:
    """Another job may record in a folder of its name by then."""
    dsprof.enable(out=str(tmp_path / "out"))
    communicate()
    writer = session.current().writer  # type: ignore[union-attr]
    while writer.events < 3:  # the file is there
        os.sched_yield()
    shutil.rmtree(tmp_path / "out")
    if is_taken:
        other = write_environment(tmp_path / "out", header(rank=dist.get_rank()), EnvSnapshot())
        assert other == writer.path
    dsprof.disable()
    said = capfd.readouterr().err
    assert "was moved or removed" in said
    assert "see them with" not in said


@pytest.mark.parametrize("mode", ["window", "always"])
def test_a_program_may_change_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], mode: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    become(rank=0, world_size=4)
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(beside, "_start", lambda *arguments: started.append(arguments))
    dsprof.enable(out="out", mode=mode, alerts="alerts.yaml")
    monkeypatch.chdir(other)
    communicate()
    dsprof.disable()
    assert read(tmp_path / "out").trailer is not None
    assert started == [(str(tmp_path / "out"), "", str(tmp_path / "alerts.yaml"))]
    assert not [*other.iterdir()]
    [line] = capfd.readouterr().err.splitlines()
    assert line.endswith("trace files: 1; see them with: dsprof report out")


def test_an_empty_local_rank_is_no_reason_to_record_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/tmp/\udcff")
    dsprof.enable(out=str(tmp_path))
    communicate()
    dsprof.disable()
    trace = read(tmp_path)
    assert trace.header.local_rank == -1
    assert trace.environment is not None
    assert "NCCL_DEBUG_FILE" in trace.environment.variables


def test_without_psutil_the_rest_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    dsprof.enable(out=str(tmp_path))
    communicate()
    dsprof.disable()
    trace = read(tmp_path)
    assert len(trace.collectives) == 1
    assert trace.trailer is not None
    assert trace.memory[0].rss_bytes == -1
    assert trace.memory[0].peak_rss_bytes > 0


def test_without_a_watchdog_the_rest_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Watchdog) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Watchdog, "start", refuse)
    dsprof.enable(out=str(tmp_path))
    communicate()
    dsprof.disable()
    trace = read(tmp_path)
    assert len(trace.collectives) == 1
    assert trace.trailer is not None
    assert "can't start new thread" in str(trace.trailer)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("dsprof.recording.capture", "forget_announced"),
        ("dsprof.recording.session", "keep_states_of_the_dead"),
    ],
)
def test_a_program_without_descriptors_ends_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    dsprof.enable(out=str(tmp_path), mode="always")
    communicate()
    monkeypatch.setattr(f"{module}.{name}", refuse)
    dsprof.disable()
    trace = read(tmp_path)
    assert len(trace.collectives) == 1
    assert trace.trailer is not None


def test_a_full_stderr_is_not_the_runs_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("no space left")

    monkeypatch.setattr(sys, "stderr", Full())
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    dsprof.enable(out=str(tmp_path))
    communicate()
    dsprof.disable()
    assert len(read(tmp_path).collectives) == 1


def test_the_session_leaves_nothing_in_flight(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path))
    communicate()
    recorder = session.current().recorder  # type: ignore[union-attr]
    dsprof.disable()
    assert recorder.stopped
    assert recorder.in_flight.works == {}


@pytest.mark.parametrize(
    ("kind", "reason"), [(KeyboardInterrupt, "interrupted"), (ValueError, "exit"), (None, "exit")]
)
def test_the_trailer_tells_ctrl_c_from_another_end(
    monkeypatch: pytest.MonkeyPatch, kind: type[BaseException] | None, reason: str
) -> None:
    reasons: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(session, "stop", reasons.append)
        patch.setattr(sys, "last_type", kind, raising=False)
        session._stop_at_exit()
    assert reasons == [reason]


def test_a_python_without_the_gil_is_not_recorded_and_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = vars(dist.Work)["wait"]
    monkeypatch.setattr(sys, "_is_gil_enabled", bool, raising=False)
    dsprof.enable(out=str(tmp_path))
    communicate()
    assert vars(dist.Work)["wait"] is before
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("dsprof: not recording: this Python runs without the GIL")
    assert session.current() is None
    assert list(tmp_path.iterdir()) == []


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


def test_a_child_that_is_forked_before_the_first_collective_records(tmp_path: Path) -> None:
    dist.destroy_process_group()
    dsprof.enable(out=str(tmp_path))
    child = os.fork()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    if child == 0:
        communicate(2)
        dsprof.disable()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = read(tmp_path)
    assert (found.header.pid, len(found.collectives)) == (child, 2)
    assert found.trailer is not None
    communicate()
    dsprof.disable()
    keys = [{*read_header(path).job_keys} for path in tmp_path.glob(FILE_PATTERN)]
    assert len(keys) == 2
    assert not keys[0] & keys[1]
