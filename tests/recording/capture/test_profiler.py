"""A window of torch.profiler opens and ends between steps, and harms no other profiler."""

from __future__ import annotations

import gzip
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.autograd import profiler as torch_functions
from torch.profiler import profile, record_function

from dsprof.recording.capture.profiler import profile_file, writing
from dsprof.trace.reader import read_header
from dsprof.trace.readers.kineto import READER
from dsprof.trace.rolling.parts import PROFILE, part_of
from dsprof.trace.run import find_run, read_run
from dsprof.trace.schema import Header
from tests.factories import kineto
from tests.factories.trace_files import write_run
from tests.recording.capture.profiled_run import CPU, Run, in_backward, names_in, runs, write_start

run = pytest.fixture(runs)


def test_it_covers_the_steps_that_ranks_agreed_on(run: Run) -> None:
    run.train(5)
    run.window.want(range(7, 10))
    run.train(2)
    assert run.is_open()
    run.train(3)
    assert not run.is_open()
    run.train(2)
    assert run.end().count("aten::add_") == 3
    header = READER.read_header(run.path)
    assert (header.rank, header.world_size, header.backend) == (3, 4, "gloo")
    assert run.notes == ["torch.profiler ran from step 7 on"]


def test_of_steps_that_are_partly_over_the_rest_is_profiled(run: Run) -> None:
    run.train(5)
    run.window.want(range(3, 9))
    run.train(1)
    assert run.is_open()
    run.train(9)
    assert not run.is_open()
    assert run.end().count("aten::add_") == 3
    assert run.notes == ["torch.profiler ran from step 6 on"]


def test_steps_that_are_over_are_noted(run: Run) -> None:
    run.train(5)
    run.window.want(range(1, 4))
    run.train(5)
    assert run.end() == []
    assert run.notes == ["torch.profiler did not run from step 1 on: these steps were over"]


def test_a_request_for_later_steps_waits_for_the_window_of_another(run: Run) -> None:
    run.window.want(range(2, 4))
    run.window.want(range(8, 11))
    run.train(6)
    run.wait_until_written()
    run.train(8)
    assert run.end().count("aten::add_") == 3
    assert run.notes == [f"torch.profiler ran from step {step} on" for step in (2, 8)]


@pytest.mark.parametrize("is_alarm", [True, False])
def test_an_earlier_request_is_kept_when_another_one_comes(run: Run, is_alarm: bool) -> None:
    run.window.want(range(7, 9))
    run.window.want(range(1, 4), is_alarm=is_alarm)
    run.train(12)
    assert run.end().count("aten::add_") == 2
    assert run.notes == [
        "torch.profiler did not run from step 1 on: a window already waits for step 7",
        "torch.profiler ran from step 7 on",
    ]


def test_a_request_replaces_a_window_that_waits_for_an_alarm(run: Run) -> None:
    run.window.want(range(1, 8), is_alarm=True)
    run.window.want(range(5, 7))
    run.train(12)
    assert run.end().count("aten::add_") == 2
    assert run.notes == [
        "torch.profiler did not run from step 1 on: a request for steps from 5 on replaced it",
        "torch.profiler ran from step 5 on",
    ]


def test_a_request_follows_the_open_window_of_an_alarm(run: Run) -> None:
    run.window.want(range(1, 5), is_alarm=True)
    run.train(2)
    run.window.want(range(3, 10))
    run.train(3)
    run.wait_until_written()
    run.train(9)
    assert run.end().count("aten::add_") == 4
    assert run.notes == [f"torch.profiler ran from step {step} on" for step in (1, 6)]


def test_an_alarm_does_not_replace_a_request(run: Run) -> None:
    run.window.want(range(1, 5))
    run.train(2)
    run.window.want(range(3, 10), is_alarm=True)
    run.train(12)
    assert run.end().count("aten::add_") == 4
    assert run.notes == [
        "torch.profiler did not run from step 3 on: a requested window has priority",
        "torch.profiler ran from step 1 on",
    ]


def test_steps_that_never_came_are_noted(run: Run) -> None:
    run.window.want(range(7, 9))
    run.train(3)
    assert run.end() == []
    assert run.notes == ["torch.profiler did not run from step 7 on: the recording ended first"]


def test_it_is_short(run: Run) -> None:
    run.window.want(range(1, 1000))
    run.train(900)
    assert run.end().count("aten::add_") == 20


@pytest.mark.parametrize("name", ["_MOST_GROWTH_BYTES", "_MOST_S"])
def test_memory_and_time_end_it_within_a_step(run: Run, name: str) -> None:
    run.window.want(range(1, 10))
    with patch.object(writing, name, -1), patch.object(writing.ProfileWriter, "start"):
        run.train(1)
    torch.ones(3)  # before the thread asks for the end
    assert run.window._writer is not None
    run.window._writer.start()
    run.wait_until_it_ends()
    assert "aten::ones" in run.end()


@pytest.mark.parametrize("is_nested", [False, True])
def test_within_backward_it_does_not_end(run: Run, is_nested: bool) -> None:
    def wait() -> None:
        if is_nested:  # as a checkpoint does
            in_backward(lambda: None)
        writer, asked = run.window._writer, threading.Event()
        assert writer is not None
        end_soon = writer._end_soon
        with patch.object(writer, "_end_soon", lambda: (end_soon(), asked.set())):
            writer._latest_s = 0
            while not asked.is_set():
                torch.ones(3)
        for _ in range(100):  # between these it would end
            torch.ones(3)
        assert run.is_open()

    run.window.want(range(1, 10))
    run.train(1)
    in_backward(wait)
    run.wait_until_it_ends()
    assert not torch.autograd._profiler_enabled()
    assert "aten::ones" in run.end()


def test_its_last_step_that_ends_within_backward_ends_it_afterwards(run: Run) -> None:
    run.window.want(range(1, 3))
    run.train(2)
    in_backward(lambda: run.train(1))
    run.wait_until_it_ends()
    assert not torch.autograd._profiler_enabled()
    assert run.end().count("aten::add_") == 2


def test_within_backward_none_is_opened(run: Run) -> None:
    run.window.want(range(1, 3))
    in_backward(lambda: run.train(5))
    assert run.end() == []
    assert run.notes == [
        "torch.profiler did not run from step 1 on: steps end in hooks of autograd"
    ]
    with profile(activities=CPU) as theirs:
        torch.ones(3).mul_(2)
    assert "aten::mul_" in [event.key for event in theirs.key_averages()]


def test_a_profiler_of_the_user_within_backward_fails_at_once(run: Run) -> None:
    def use() -> None:
        with pytest.raises(RuntimeError, match="in a hook of autograd"):
            profile(activities=CPU).start()

    run.window.want(range(1, 10))
    run.train(2)
    in_backward(use)
    run.wait_until_it_ends()
    assert not torch.autograd._profiler_enabled()
    assert run.end().count("aten::add_") == 1


def test_the_end_of_the_recording_within_backward_ends_it_afterwards(run: Run) -> None:
    run.window.want(range(1, 20))
    run.train(2)
    in_backward(run.window.close)
    run.wait_until_it_ends()
    assert not torch.autograd._profiler_enabled()
    run.wait_until_written()
    assert names_in(run.path).count("aten::add_") == 1


@contextmanager
def interrupted(name: str) -> Iterator[None]:
    """Send Ctrl-C to this process when torch has carried out a function."""
    function = getattr(torch_functions, name)

    def carry_out(*arguments: Any) -> Any:
        results = function(*arguments)
        signal.raise_signal(signal.SIGINT)
        return results

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with patch.object(torch_functions, name, carry_out):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("most_s", [-1, 10])
def test_ctrl_c_while_it_ends_reaches_the_program(run: Run, most_s: float) -> None:
    run.window.want(range(1, 3))
    with (
        patch.object(writing, "_MOST_S", most_s),
        interrupted("_disable_profiler"),
        pytest.raises(KeyboardInterrupt),
    ):
        run.train_until_it_ends(within_a_step=most_s < 0)
    assert not run.is_open()
    run.wait_until_written()
    run.window.want(range(12, 14))
    run.train(20)
    assert run.end().count("aten::add_") == 2


def test_ctrl_c_while_it_begins_reaches_the_program(run: Run) -> None:
    run.window.want(range(1, 3))
    with pytest.raises(KeyboardInterrupt), interrupted("_enable_profiler"):
        run.train(1)
    assert not torch.autograd._profiler_enabled()
    run.window.want(range(3, 5))
    run.train(9)
    assert run.end().count("aten::add_") == 2


def test_without_a_thread_that_bounds_it_none_is_opened(run: Run) -> None:
    run.window.want(range(1, 3))
    with patch.object(writing.ProfileWriter, "start", side_effect=RuntimeError("no more threads")):
        run.train(1)
    assert not torch.autograd._profiler_enabled()
    assert [str(error) for error in run.failures] == ["no more threads"]


def test_a_trace_that_was_put_away_gets_no_profile(run: Run) -> None:
    run.window.want(range(1, 2))
    run.train(1)
    run.path.with_name("trace.1.rank00003.json").unlink()
    run.train(2)
    assert run.end() == []
    assert run.notes == []


def test_no_profile_is_put_beside_the_trace_of_another_process(run: Run) -> None:
    """The folder of the run was moved, and another job records in one of its name."""
    run.window.want(range(1, 2))
    run.train(1)
    other = Header(1, "run", 3, 4, "host", os.getpid() + 1, 0, 0, backend="gloo")
    write_start(run.path.with_name("trace.1.rank00003.json"), other)
    run.train(2)
    assert run.end() == []
    assert run.notes == []


def test_none_is_opened_while_the_last_is_written(run: Run) -> None:
    run.window.want(range(1, 2))
    written, proceed = writing.write_profile, threading.Event()

    def slowly(*arguments: Any) -> None:
        proceed.wait()
        written(*arguments)

    with patch.object(writing, "write_profile", slowly):
        run.train(2)
        run.window.want(range(3, 4))
        run.train(3)
        proceed.set()
        assert run.end().count("aten::add_") == 1
    assert (
        run.notes[0]
        == "torch.profiler did not run from step 3 on: the last profile is still being written"
    )


def test_a_fork_ends_it(run: Run) -> None:
    run.window.want(range(1, 20))
    run.train(2)
    child = os.fork()
    if not child:
        os._exit(int(torch.autograd._profiler_enabled()))
    assert os.waitpid(child, 0)[1] == 0
    assert not run.is_open()
    assert run.end().count("aten::add_") == 1


def test_a_fork_within_backward_ends_it_in_the_child(run: Run) -> None:
    def fork() -> None:
        child = os.fork()
        if not child:
            run.window.abandon()
            os._exit(int(torch.autograd._profiler_enabled()))
        assert os.waitpid(child, 0)[1] == 0

    run.window.want(range(1, 20))
    run.train(2)
    in_backward(fork)
    assert run.is_open()
    run.window._end()
    assert not torch.autograd._profiler_enabled()
    assert run.end().count("aten::add_") == 1


def test_a_window_that_waits_ends_with_its_world(run: Run) -> None:
    run.window.want(range(9, 11))
    run.train(5)
    run.window.want(range(12, 14))
    run.begin_world()
    run.train(20)
    assert run.end() == []
    assert run.notes == [
        f"torch.profiler did not run from step {step} on: "
        "the default process group was recreated first"
        for step in (9, 12)
    ]


def test_an_open_window_ends_with_its_world(run: Run) -> None:
    run.window.want(range(3, 20))
    run.train(6)
    assert run.window.slows(10)
    run.begin_world()
    assert not run.is_open()
    assert not run.window.slows(10)
    assert run.end().count("aten::add_") == 3


def test_the_end_of_the_recording_ends_it(run: Run) -> None:
    run.window.want(range(1, 20))
    run.train(2)
    assert run.end().count("aten::add_") == 1


def test_functions_of_torch_are_put_back(tmp_path: Path) -> None:
    names = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
    before = [getattr(torch_functions, name) for name in names]
    run = Run(tmp_path)
    assert torch_functions._enable_profiler is not before[1]
    run.end()
    assert [getattr(torch_functions, name) for name in names] == before


def test_no_secret_is_left(run: Run) -> None:
    run.window.want(range(1, 2))
    run.train(1)
    with record_function("load s3://key:sw0rdf1sh@bucket/data"):
        run.train(1)
    text = " ".join(run.end())
    assert "bucket/data" in text
    assert "sw0rdf1sh" not in text


class Results:
    """What torch's profiler returns, with these contents."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.place = ""

    def save(self, name: str) -> None:
        """Write as torch does."""
        Path(f"{name}.tmp").write_bytes(self._text)
        os.rename(f"{name}.tmp", name)
        self.place = os.path.realpath(name)


def test_torch_writes_to_a_file_that_a_kill_removes(tmp_path: Path) -> None:
    results = Results(b'{"traceEvents": [\n]}')
    header = Header(1, "run", 0, 1, "host", 1, 0, 0)
    profile_file.write_profile(results, tmp_path / "profile.gz", header, str)
    assert results.place.endswith("(deleted)")
    assert names_in(tmp_path / "profile.gz") == []


def test_a_report_reads_its_kernels(tmp_path: Path) -> None:
    start_ns = int(kineto.START_US) * 1000
    traces = write_run(tmp_path, started_epoch_ns=start_ns)
    for file in traces:
        header = read_header(file)
        text = kineto.document(kineto.steps(3, 20, 5), 5, host_name="elsewhere", traceName="/home")
        path = part_of(file, PROFILE)
        profile_file.write_profile(Results(text), path, header, str)
        assert b"elsewhere" not in gzip.decompress(path.read_bytes())
    for trace in read_run(find_run([tmp_path])):
        assert trace.profile is not None
        assert trace.profile.is_tied
        assert len(trace.profile.device) == 6
