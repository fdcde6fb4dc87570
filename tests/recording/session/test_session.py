"""A session from enable to disable, in one process over torch's fake backend."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof
from dsprof.errors import ConfigError
from dsprof.recording import beside, session
from dsprof.recording.recorder import in_flight
from dsprof.recording.recorder.shared_key import SharedKey
from dsprof.recording.watchdog.thread import Watchdog
from dsprof.trace.dumps.state_file import read_state
from dsprof.trace.reader import read_header, read_trace
from dsprof.trace.schema import FILE_PATTERN, NEW_GROUP
from dsprof.trace.writing.writer import TraceWriter
from tests.recording.session.fake_group import become, communicate, read


def test_enable_disable_enable_are_two_traces(tmp_path: Path) -> None:
    for count in (2, 5):
        dsprof.enable(out=str(tmp_path))
        communicate(count)
        dsprof.disable()
        communicate()
    counts = [len(read_trace(file).collectives) for file in sorted(tmp_path.glob(FILE_PATTERN))]
    assert sorted(counts) == [2, 5]


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


def test_what_is_given_up_when_the_trace_ends_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer ends its turn meanwhile, and torch's fake backend completes nothing."""
    has_looked = Event()

    def wait_for_the_end(writer: TraceWriter) -> None:
        has_looked.set()
        while not writer._closing:
            os.sched_yield()

    monkeypatch.setattr(in_flight, "IN_FLIGHT", 2)
    monkeypatch.setattr(TraceWriter, "_show_life", wait_for_the_end)
    dsprof.enable(out=str(tmp_path))
    communicate()
    has_looked.wait()
    for _ in range(5):
        dist.all_reduce(torch.zeros(4), async_op=True)
    dsprof.disable()
    trace = read(tmp_path)
    assert len(trace.collectives) == 6
    assert trace.trailer is not None
    assert trace.trailer.given_up == 3


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
    assert "fake_group.py" in data


@pytest.mark.parametrize("anonymize", [False, True])
def test_ranks_agree_on_a_key_unless_names_are_anonymized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anonymize: bool
) -> None:
    agreed: list[SharedKey] = []
    monkeypatch.setattr(SharedKey, "agree", lambda key, _: agreed.append(key))
    dsprof.enable(out=str(tmp_path), anonymize=anonymize)
    communicate()
    assert bool(agreed) is not anonymize


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


def test_a_child_that_is_forked_with_a_group_is_no_rank_of_it(tmp_path: Path) -> None:
    """Before the parent records: the child trains a model of its own."""
    dist.destroy_process_group()
    dsprof.enable(out=str(tmp_path))
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    child = os.fork()
    if child == 0:
        dsprof.step()
        dsprof.step()
        dsprof.disable()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not [*tmp_path.iterdir()]
    communicate()
    dsprof.disable()
    assert read(tmp_path).header.pid == os.getpid()


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


def test_what_others_left_in_memory_goes_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / f".dsprof-{os.getuid()}-run-0-1.state.0123abcd"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    monkeypatch.setattr("dsprof.recording.session.memory_folders", lambda: [tmp_path])
    dsprof.enable(out=str(tmp_path / "out"))
    communicate()
    dsprof.disable()
    assert not left.exists()


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
        ("dsprof.recording.capture.thread", "forget_announced"),
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


def _destroy_when_it_failed() -> None:
    try:
        raise ValueError
    except ValueError:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("leave", "is_left"),
    [
        (dist.destroy_process_group, True),
        (_destroy_when_it_failed, False),
        (lambda: dist.distributed_c10d._abort_process_group(), False),
        (lambda: dist.destroy_process_group(dist.new_group([1])), False),
        (lambda: become(rank=1, world_size=4), False),  # here in the same trace
    ],
    ids=["destroyed", "destroyed as it failed", "aborted", "a subgroup", "begun again"],
)
def test_it_is_known_that_the_program_left_its_group_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: Callable[[], None], is_left: bool
) -> None:
    monkeypatch.setattr(session, "_MOST_TRACES", 1)
    dsprof.enable(out=str(tmp_path))
    communicate()
    recording = session.current()
    assert recording is not None
    leave()
    path = recording.recorder.in_flight.state.path
    assert path is not None
    left_ns = read_state(path).left_ns
    assert (left_ns > 0) == is_left
    while is_left and b'"group_end"' not in next(tmp_path.glob(FILE_PATTERN)).read_bytes():
        os.sched_yield()  # a turn of the writer
    dsprof.disable()
    trace = read(tmp_path)
    ends = [one.time_ns + trace.header.started_monotonic_ns for one in trace.group_ends]
    if is_left:
        assert ends == [left_ns]


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
