"""What torch's handler of exceptions writes to a log of several ranks."""

from __future__ import annotations

from itertools import chain, zip_longest

import pytest

from dsprof.trace.rank_log import EXCEPTION, LAUNCHER, TRACEBACK
from dsprof.trace.readers.logs import LogReader
from tests.factories import logs as make

BEGIN = "Traceback (most recent call last):"
CHAINED = "The above exception was the direct cause of the following exception:"


def traceback(rank, *exception, before=""):
    """An uncaught exception of a rank; of two, the second was raised from the first."""
    lines = []
    for number, last in enumerate(exception):
        lines += ["", CHAINED, ""] if number else []
        lines += [BEGIN, '  File "/run/train.py", line 7, in <module>', "    main()", last]
    return [f"{before}[rank{rank}]: {line}" for line in lines]


def raised(*lines):
    """The exceptions of each rank in a log."""
    found = {trace.rank: [*trace.log.values(EXCEPTION)] for trace in make.read([*lines])}
    return {rank: values for rank, values in found.items() if values}


@pytest.mark.parametrize(
    "exception", ["KeyError: 'labels'", "binascii.Error: Incorrect padding", "StopIteration"]
)
@pytest.mark.parametrize("before", ["", "0: ", "node2: ", "Map: 96% 38/39 [00:07<00:00]"])
def test_the_exception_of_a_rank_is_read_behind_what_launchers_write(exception, before):
    assert raised(*traceback(3, exception, before=before)) == {3: [exception]}


def test_tracebacks_of_ranks_may_run_into_each_other():
    first, second = traceback(0, "ValueError: a"), traceback(5, "OSError: b", "TypeError: c")
    both = zip_longest(first, second, [BEGIN, "KeyError: of nobody"], fillvalue="[rank1]: hello: x")
    assert raised(*chain.from_iterable(both)) == {0: ["ValueError: a"], 5: ["TypeError: c"]}


def test_only_the_first_line_of_a_message_is_kept_and_what_a_rank_prints_is_no_exception():
    lines = traceback(2, "ValueError: first")
    assert raised("[rank2]: Error: before", *lines, "[rank2]: Second: line") == {
        2: ["ValueError: first"]
    }


def test_a_traceback_that_is_cut_tells_nothing():
    assert raised(*traceback(2, "OSError")[:-1], "[rank1]: KeyError: 1", make.ready(0)) == {}


WATCHDOG = "atchdog thread terminated with exception: CUDA error: an illegal memory access"


@pytest.mark.parametrize(
    "line",
    [
        f"[rank3]:[E1107 12:00:00.1 9 ProcessGroupNCCL.cpp:1] [PG ID 2 PG GUID 7(tp) Rank 1] "
        f"Process group w{WATCHDOG}",
        f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group w{WATCHDOG}",
        f"[E ProcessGroupNCCL.cpp:915] [Rank 3] NCCL w{WATCHDOG}",
        f"3: [E ProcessGroupNCCL.cpp:915] NCCL w{WATCHDOG}",
    ],
)
def test_an_error_of_the_device_that_the_watchdog_meets_ends_a_rank(line):
    assert raised(line) == {3: ["CUDA error: an illegal memory access"]}
    own = traceback(3, "RuntimeError: CUDA error: x")
    assert raised(line, *own) == raised(*own, line) == {3: ["RuntimeError: CUDA error: x"]}


MISMATCH = "Detected mismatch between collectives on ranks. Rank 0 is running collective: x"


@pytest.mark.parametrize("before", ["[rank3]: RuntimeError: ", "3: step 7: ", "[rank3]:[ERROR] "])
def test_a_mismatch_of_collectives_ends_a_rank_without_a_traceback(before):
    assert raised(f"{before}{MISMATCH}") == {3: [f"RuntimeError: {MISMATCH}"]}
    assert LogReader().recognises(f"{before}{MISMATCH}\n".encode())


def test_a_mismatch_that_no_line_gives_a_rank_is_a_warning():
    (trace,) = make.read([f"ERROR: {MISMATCH}"])
    assert [*trace.log.warnings] == [MISMATCH]


def test_a_watchdog_that_names_the_rank_in_a_smaller_group_tells_of_nobody():
    line = f"  what():  [PG ID 2 PG GUID 7(tp) Rank 1] Process group w{WATCHDOG}"
    assert raised(line, make.ready(0)) == {}


def test_no_part_of_a_credential_is_left_where_a_message_is_cut():
    address = "https://user:correcthorsebatterystaple@host"
    [[exception]] = raised(*traceback(0, f"OSError: {'x ' * 480}{address} y{' y' * 99}")).values()
    assert len(exception) == 1000
    assert "correct" not in exception
    assert "https://<redacted>@host" in exception
    [trace] = make.read(make.run(make.said(f"{'x ' * 85}{address}", level="WARN"), ranks=1))
    [warning] = trace.log.warnings
    assert warning.endswith("https://<redacted>@host")


FAILED = "E0517 api.py:826] failed (exitcode: 1) local_rank: 0 (pid: 3) of binary: python"


def first(*lines):
    """What ended the first of several processes of unknown rank."""
    (trace,) = make.read([*lines, FAILED])
    assert (trace.log.values(LAUNCHER), trace.log.values(EXCEPTION)) == ({"exit code 1": 1}, {})
    return [*trace.log.values(TRACEBACK)]


def nobody(exception, before=""):
    return [before + line.partition("]: ")[2] for line in traceback(0, exception)]


@pytest.mark.parametrize("before", ["", "(Worker pid=9, ip=10.0.0.1) ", "node-2: ", "stderr: "])
def test_the_first_exception_without_a_rank_is_kept_if_a_launcher_says_that_one_failed(before):
    later = nobody("a.b.SomeError", before)
    assert first(*nobody("ValueError: x", before), *later) == ["ValueError: x"]
    assert first(f"{before}ValueError: x", *later) == ["a.b.SomeError"]


@pytest.mark.parametrize("losses", [200, 9000])
def test_an_exception_that_was_caught_before_is_not_kept(losses):
    caught = [*nobody("ImportError: no x"), *["loss 2.1"] * losses]
    assert first(*caught, *nobody("ValueError: x")) == ["ValueError: x"]


@pytest.mark.parametrize(
    "exception",
    [
        "RuntimeError: Connection reset by peer",
        "torch.distributed.DistBackendError: NCCL error",
        "ray.exceptions.ActorDiedError: The actor died",
        "ray.exceptions.WorkerCrashedError: The worker died",
        "RuntimeError: The job was terminated",
        "KeyboardInterrupt",
    ],
)
def test_what_ranks_raise_because_of_another_does_not_replace_its_exception(exception):
    frames = ["frame #0: c10::Error::Error"] * 100
    assert first(*nobody("ValueError: x"), *frames, *nobody(exception)) == ["ValueError: x"]


def test_what_is_raised_soon_after_an_exception_does_not_replace_it():
    begin, *other = nobody("KeyError: 'y'")
    for shortly in ([*["loss 2.1"] * 60, begin], [begin, *["loss 2.1"] * 200, f"[rank3]: {begin}"]):
        assert first(*nobody("ValueError: x"), *shortly, *other) == ["ValueError: x"]


def test_an_exception_that_python_ignored_ended_nothing():
    ignored = ["Exception ignored in: <function A.__del__ at 0x7f>", *nobody("TypeError: y")]
    assert first(*nobody("ValueError: x"), *["killing"] * 200, *ignored) == ["ValueError: x"]
    assert first(*ignored, *nobody("ValueError: x")) == ["ValueError: x"]


def test_of_chained_exceptions_without_a_rank_the_last_is_kept():
    during = "During handling of the above exception, another exception occurred:"
    chain = [*nobody("KeyError: 'x'"), "", during, "", *nobody("ValueError: no x")]
    assert first(*chain, *nobody("OSError: later")) == ["ValueError: no x"]
    assert first(*nobody("OSError: earlier"), *chain) == ["OSError: earlier"]


def test_what_a_launcher_raises_is_not_kept():
    called = "subprocess.CalledProcessError: Command '['python', 'a.py']' died"
    assert first(*nobody(called), *nobody("torch.d.ChildFailedError: ")) == []
