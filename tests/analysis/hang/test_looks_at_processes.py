"""Why a rank did not come, by what is seen of its process or what it wrote; times in ms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.ending import Symptoms
from dsprof.analysis.hang.verdict import verdicts
from dsprof.trace.dumps.hang_dump import Connection, HangDump, ProcessState, ThreadStack
from tests.analysis.hang.judging import root
from tests.factories.hangs import CTRL_C, END, EXIT, KILLED, RANKS, rank, waits, without
from tests.factories.trace import group, header, summary, sync


@pytest.mark.parametrize(
    ("look", "kind", "cause"),
    [
        (Symptoms(state="T"), "frozen", "stopped"),
        (Symptoms(state="X"), "died", "unknown"),
        (Symptoms(state="X", oom_kills=1), "died", "out_of_memory"),
        (Symptoms(state="D"), "never_entered", "file_system"),
        (Symptoms(holds_interpreter=True), "frozen", "interpreter_lock"),
        (Symptoms(waits_in="hrtimer_nanosleep"), "never_entered", "sleep"),
        (Symptoms(waits_in="futex_wait_queue"), "never_entered", "lock"),
        (Symptoms(waits_in="pipe_read"), "never_entered", "file_system"),
        (
            Symptoms(
                stack=(
                    "/usr/lib/python3/queue.py:171 get",
                    "/x/torch/utils/data/dataloader.py:1251 _try_get_data",
                )
            ),
            "never_entered",
            "data_loader",
        ),
        (Symptoms(stack=("/usr/lib/python3/threading.py:9 wait",)), "never_entered", "lock"),
        (
            Symptoms(
                stack=(
                    "/usr/lib/python3/selectors.py:415 select",
                    "/usr/lib/python3/subprocess.py:2108 _communicate",
                )
            ),
            "never_entered",
            "child_process",
        ),
    ],
)
def test_a_look_at_the_process_tells_why(look: Symptoms, kind: str, cause: str) -> None:
    found = root(*without(2, **KILLED), r2=look)
    assert (found.kind, found.ranks, found.cause.kind) == (kind, (2,), cause)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("    time.sleep(100)", "sleep"),
        ("    lock.acquire()", "lock"),
        ("    os.waitpid(pid, 0)", "child_process"),
        ("    with self.lock:", "lock"),
        ('    with open(path, "rb") as file:', "file_system"),
        ("    file.read()", "file_system"),
        ("    total += 1", "unknown"),
    ],
)
def test_the_line_of_source_tells_what_is_called_in_c(
    tmp_path: Path, line: str, cause: str
) -> None:
    source = tmp_path / "train.py"
    source.write_text(f"def train():\n{line}\n")
    found = root(*without(2, **KILLED), r2=Symptoms(stack=(f"{source}:2 train",)))
    assert found.cause.kind == cause
    assert found.stacks["2"] == (f"{source}:2 train",)
    assert found.kind == "never_entered"


def test_a_process_that_is_gone_and_wrote_its_last_line_had_exited() -> None:
    others = [rank(n, [waits()], **KILLED) for n in (0, 1, 3)]
    found = root(*others, rank(2, [], 900, **EXIT), r2=Symptoms(state="X"))
    assert (found.kind, found.cause.kind) == ("never_entered", "exited")


def test_a_call_of_torch_distributed_that_is_not_recorded_is_no_lock() -> None:
    torch = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    stack = (f"{torch}:5435 monitored_barrier", "train.py:7 main")
    look = Symptoms(stack=stack, waits_in="futex_do_wait")
    found = root(*without(2, **KILLED), r2=look)
    assert found.cause.kind == "diverged"
    assert "is in monitored_barrier of torch.distributed at train.py:7 main." in found.cause.text


def test_where_bytes_stay_unsent_the_network_is_broken() -> None:
    def connected(*peers: int, unsent: Sequence[int] = ()) -> Symptoms:
        """Ports are 10 * own rank + peer's rank, seen from either end."""
        me = ({*range(RANKS)} - {*peers}).pop()
        ends = [Connection(10 * me + n, 10 * n + me, 176 * (n in unsent), 0) for n in peers]
        return Symptoms(at_ns=10**12, connections=tuple(ends))

    looks = {"r0": connected(1, 2, 3, unsent=[2]), "r1": connected(0, 2, 3),
             "r2": connected(0, 1, 3, unsent=[3]), "r3": connected(0, 1, 2)}  # fmt: skip
    found = root(*(rank(n, [waits()], **CTRL_C) for n in range(RANKS)), **looks)
    assert (found.kind, found.ranks) == ("network", (2,))
    assert "unsent between ranks 0 and 2; 2 and 3:" in found.cause.text


def test_bytes_that_a_rank_does_not_read_are_not_the_networks() -> None:
    looks = {
        "r0": Symptoms(at_ns=10**12, connections=(Connection(1, 2, 4096, 0),)),
        "r1": Symptoms(at_ns=10**12, connections=(Connection(2, 1, 0, 4096),)),
    }
    found = root(*(rank(n, [waits()], **CTRL_C) for n in range(RANKS)), **looks)
    assert (found.kind, found.ranks) == ("network", (0, 1, 2, 3))


@pytest.mark.parametrize(("state", "is_said"), [("", True), ("S", False)])
def test_who_was_seen_alive_at_the_end_of_its_record_was_not_killed(
    state: str, is_said: bool
) -> None:
    found = root(*without(2, **KILLED), r2=Symptoms(state=state, at_ns=10**15))
    assert ("breaks off: killed, crashed, or still running" in found.cause.text) is is_said


def at_store(host: str = "") -> Symptoms:
    return Symptoms(stack=("train.py:9 main",), store_call="new_group", lost_store=host)


def test_a_store_that_does_not_answer_is_the_cause() -> None:
    looks = {f"r{n}": at_store("node-a:29500") for n in range(RANKS)}
    found = root(*(rank(n, [], **KILLED) for n in range(RANKS)), **looks)
    assert (found.kind, found.ranks, found.cause.kind) == ("network", (), "store")
    assert "node-a:29500, which does not answer" in found.sentence


def test_who_creates_no_group_is_named() -> None:
    looks = {f"r{n}": at_store() for n in (0, 1, 3)} | {
        "r2": Symptoms(waits_in="hrtimer_nanosleep")
    }
    found = root(*(rank(n, [], **KILLED) for n in range(RANKS)), **looks)
    assert (found.kind, found.ranks, found.waiting) == ("never_entered", (2,), (0, 1, 3))
    assert found.cause.kind == "sleep"


ALIVE = Symptoms(state="S")


def test_a_living_process_that_writes_nothing_runs_no_python() -> None:
    waiting = [rank(n, [waits()], **KILLED) for n in (0, 1, 3)]
    look = Symptoms(state="S", waits_in="hrtimer_nanosleep")
    found = root(*waiting, rank(2, [], 900, **KILLED), r2=look)
    assert (found.kind, found.cause.kind) == ("frozen", "interpreter_lock")


def test_a_living_rank_that_goes_on_elsewhere_is_slow() -> None:
    own = group(RANKS, id=2, key="own", label="own", ranks=[2])
    lately = [sync("all_reduce", END - 100, 1, seq=1, group=2)]
    traces = [trace for trace in without(2, **KILLED) if trace.rank != 2]
    two = rank(2, lately, groups={1: group(RANKS), 2: own}, **KILLED)
    assert root(*traces, two, r2=ALIVE).kind == "slow"
    assert root(*traces, two).kind == "never_entered"


def test_a_run_whose_processes_live_and_wait_for_nothing_has_no_hang() -> None:
    traces = [rank(n, [], 900, **KILLED) for n in range(RANKS)]
    assert root(*traces, r0=ALIVE, r1=ALIVE, r2=ALIVE, r3=ALIVE).kind == "none"


def noticed(at_s: float, **fields: Any) -> HangDump:
    given: dict[str, Any] = {"process": ProcessState(state="S", waits_in="futex_wait_queue")}
    return HangDump(
        header=header(2, RANKS),
        noticed_epoch_ns=0,
        noticed_ns=round((50 + at_s) * 10**9),
        reason="",
        **(given | fields),
    )


def test_the_calls_in_cpp_are_shown_before_those_that_made_them() -> None:
    traces = without(2, **KILLED)
    native = 'Thread 9: "MainThread"\n  cudaStreamSynchronize (libcudart.so.12)\n  f (a.py:3)\n'
    own, other = ThreadStack("MainThread", ("a.py:3 f",)), ThreadStack("", ("b.py:4 g",))
    traces[2].hang_dump = noticed(20, threads=[own], native_stacks=native)
    (found, *_) = verdicts(summary(*traces)[Endings])
    assert found.where["2"] == ("cudaStreamSynchronize (libcudart.so.12)", "a.py:3 f")
    assert found.stacks["2"] == ("a.py:3 f",)
    traces[2].hang_dump = noticed(20, threads=[other], native_stacks=native)
    (found, *_) = verdicts(summary(*traces)[Endings])
    assert found.where["2"] == ("b.py:4 g",)


@pytest.mark.parametrize(
    ("dump", "kind", "cause"),
    [
        (noticed(20), "never_entered", "lock"),
        (noticed(0.5), "never_entered", "unknown"),  # of a pause before
        (noticed(20, holds_interpreter=True), "frozen", "interpreter_lock"),
        (noticed(20, process=ProcessState(state="T")), "frozen", "stopped"),
        (noticed(20, process=ProcessState(state="X")), "died", "unknown"),
        (noticed(20, process=ProcessState(state="X", oom_kills=1)), "died", "out_of_memory"),
        (noticed(20, process=ProcessState(state="S", oom_kills=1)), "never_entered", "unknown"),
    ],
)
def test_what_a_rank_wrote_of_itself_tells_why(dump: HangDump, kind: str, cause: str) -> None:
    traces = without(2, **KILLED)
    traces[2].hang_dump = dump
    found = verdicts(summary(*traces)[Endings])[0]
    assert (found.kind, found.cause.kind) == (kind, cause)
