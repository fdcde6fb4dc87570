"""Logs against damage of every kind: a run or one TraceError of one line, nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsprof.diagnosis.build import diagnose
from dsprof.errors import TraceError
from dsprof.trace.log import MOST_VALUES
from dsprof.trace.readers.logs import LogReader
from dsprof.trace.readers.logs.lines import LONGEST_LINE_BYTES
from dsprof.trace.readers.logs.scan import LogScan
from dsprof.trace.run import find_run
from dsprof.trace.table import RankTrace
from tests.factories import logs as make

LINES = make.run(
    make.every("Using network IB"),
    make.every("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"),
    make.said("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0(3)/GDRDMA/Shared"),
    make.said("NCCL_ALGO set by environment to Ring"),
    make.said("Bootstrap : no socket interface found", level="WARN"),
    "[rank2]: " + make.out_of_memory(others="Process 1 has 3.00 GiB memory in use. "),
    "[rank1]: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, "
    "OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=6) ran for 60 milliseconds",
    "DeepSpeed info: version=0.19.8, git-hash=x",
    make.call("all_reduce", 3.5),
    make.table("broadcast", ("2.0 KB", 146, 11.12, 0.08, 0.43, 0.41)),
)
WHOLE = "\n".join(LINES).encode()

fuzz = settings(
    max_examples=int(os.environ.get("DSPROF_FUZZ", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def read(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    LogReader().recognises(data)
    try:
        traces = list(LogReader().read_traces(path))
    except TraceError as refusal:
        message = str(refusal)
    else:
        _check(traces)
        return
    assert message.startswith(str(path))
    assert "\n" not in message


def _check(traces: list[RankTrace]) -> None:
    for trace in traces:
        assert trace.log is not None
        assert all(len(values) <= MOST_VALUES for values in trace.log.facts.values())
        assert trace.rank < max(1, trace.header.world_size or 1 << 20)


def test_the_whole_log_is_judged(path: Path) -> None:
    path.write_bytes(WHOLE)
    diagnosis = diagnose(find_run([path]))
    assert {fact.kind for fact in diagnosis.logged} >= {"network", "path", "network devices"}
    assert len(diagnosis.logged_calls) == 2


@fuzz
@given(cut=st.integers(0, len(WHOLE)))
def test_a_cut_log(path: Path, cut: int) -> None:
    read(path, WHOLE[:cut])
    read(path, WHOLE[cut:])


@fuzz
@given(position=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_one_flipped_bit(path: Path, position: int, bit: int) -> None:
    data = bytearray(WHOLE)
    data[position] ^= 1 << bit
    read(path, bytes(data))


@fuzz
@given(start=st.integers(0, len(WHOLE)), noise=st.binary(min_size=1, max_size=64))
@example(start=10, noise=b"\0" * 70_000)
@example(start=10, noise=b"9" * 70_000)
@example(start=10, noise=b"[" * 70_000)
def test_noise_in_the_middle(path: Path, start: int, noise: bytes) -> None:
    read(path, WHOLE[:start] + noise + WHOLE[start:])


@fuzz
@given(
    line=st.sampled_from(LINES),
    old=st.sampled_from(["0", "1", " ", ".", ":", "[", "GiB", "rank", "/"]),
    new=st.sampled_from(
        [
            "9" * 40,
            "-1",
            "\0",
            "\x1b[31m",
            "²",
            "٣",
            "\ud800",
            "nan",
            "1e999",
            "{}",
            "{0}",
            "%s",
            "",
        ]
    ),
)
def test_strange_words_in_a_line(path: Path, line: str, old: str, new: str) -> None:
    read(path, line.replace(old, new).encode("utf-8", "surrogatepass"))


@fuzz
@given(data=st.binary(max_size=256))
@example(WHOLE.decode().encode("utf-16"))
@example(b"\xef\xbb\xbf" + WHOLE)
@example(WHOLE.replace(b"\n", b"\r\n"))
@example(WHOLE.replace(b"\n", b"\r"))
@example((" " * 60_000 + LINES[0]).encode())
@example((LINES[0] + " " * 60_000 + "x").encode())
@example(("a:1:1 " * 10_000 + "[0] NCCL INFO x").encode())
@example(("Channel 0 : " + "0[0] -> " * 8000).encode())
@example(("x NCCL INFO NET/IB : Using " + "[0]a " * 12_000).encode())
@example(("NCCL " * 13_000).encode())
def test_anything_at_all(path: Path, data: bytes) -> None:
    read(path, data)
    read(path, b"a:1:2 [0] NCCL INFO " + data)
    read(path, b"comm op: " + data)


@pytest.mark.timed
@pytest.mark.parametrize(
    "unit", ["a:", ":1:1 ", "[PG ", "[PG 1 PG GUID ", "[1] ", "[rank1]:", "comm op: ", "1: ", " "]
)
def test_no_line_takes_long(unit: str) -> None:
    """A line of 64 KiB that almost fits costs a fraction of a second, not half a minute."""
    scan = LogScan()
    before = time.process_time()
    for end in ("NCCL INFO x", "atchdog ", "Tried to allocate 1.00 MiB out of memory."):
        scan.take((unit * (LONGEST_LINE_BYTES // len(unit)) + end)[-LONGEST_LINE_BYTES:])
    assert time.process_time() - before < 5


def test_no_more_processes_are_kept_than_can_be_judged(path: Path) -> None:
    lines = [make.said("Using network IB", host=f"host{i}") for i in range(5000)]
    path.write_text("\n".join(lines))
    traces = list(LogReader().read_traces(path))
    assert len(traces) == 4096
    notes = [note.text for trace in traces for note in trace.notes]
    assert any("log names more processes" in text and "904 lines" in text for text in notes)


def test_all_ranks_of_a_log_share_the_room_for_facts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsprof.trace.readers.logs.scan._MOST_FACTS", 5)
    lines = [f"[rank{i % 4}]: {make.call('all_reduce', 1.0, f'{i}.0 KB')}" for i in range(8)]
    path.write_text("\n".join([*lines, *lines[:2]]))
    traces = list(LogReader().read_traces(path))
    calls = [one.calls for trace in traces if trace.log for one in trace.log.calls.values()]
    assert sorted(calls) == [1, 1, 1, 2, 2]
    assert any("3 lines are left out" in note.text for note in traces[0].notes)
