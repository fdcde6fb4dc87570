"""The writer's file: whole lines, definitions first, window and budget kept, runs kept apart."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dsprof.trace.reader import read_trace
from dsprof.trace.schema import (
    FILE_PATTERN,
    Collective,
    Copy,
    DeviceStep,
    Fetch,
    Flush,
    Group,
    GroupEnd,
    MemorySample,
    Note,
    Phase,
    Stall,
    Step,
    Trailer,
)
from dsprof.trace.window import Window
from dsprof.trace.writing import writer
from dsprof.trace.writing.writer import OPEN_AFTER_NS, TraceWriter
from tests.trace.written_run import START_NS, Run, after_one_look, collective, step_end


def test_everything_written_is_read_back(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.definitions.append(Group(1, "key", "world", ranks=[0, 1], size=2))
    run.records.extend([collective(1, 0), collective(2, 0, reduce_op="MAX"), step_end(0)])
    trace = run.close()
    assert list(trace.collectives.id) == [1, 2]
    assert list(trace.collectives.issue_ns) == [1000, 2000]
    assert list(trace.collectives.done_ns) == [1500, 2500]
    assert [trace.collectives.words[code] for code in trace.collectives.reduce_op] == ["SUM", "MAX"]
    assert trace.groups[1].ranks == [0, 1]
    assert [step.step for step in trace.steps] == [0]
    assert [sample.at for sample in trace.memory] == ["writer", "step", "writer"]
    assert trace.trailer is not None
    assert trace.trailer.reason == "disable"
    assert trace.broken_lines == 0
    assert trace.path not in {one.path for one in psutil.Process().open_files()}


def test_what_a_process_without_stderr_prints_does_not_land_in_the_trace(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from dsprof.trace.schema import Header
from dsprof.trace.writing.writer import write_environment
from dsprof.environment import EnvSnapshot
os.close(2)
pwrite = os.pwrite
os.pwrite = lambda file, data, at: (os.write(1, b"%d " % file), pwrite(file, data, at))[1]
write_environment(Path(sys.argv[1]), Header(1, "run", 0, 1, "host", 1, 0, 0), EnvSnapshot())
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    files = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.split()
    assert [int(file) > 2 for file in files] == [True]


def test_memory_is_looked_at_once_for_the_steps_of_a_second(tmp_path: Path) -> None:
    run, looks = Run(tmp_path), []

    def look(at: str, step: int) -> MemorySample:
        looks.append(at)
        return MemorySample(at, ends_ns[max(step, 0)], step, rss_bytes=len(looks))

    ends_ns = [START_NS + ms * 1_000_000 for ms in (100, 1000, 1100, 1200)]
    run.writer._source.sample_memory = look
    run.records.extend(
        Step(step, START_NS, end_ns, 1, "deepspeed") for step, end_ns in enumerate(ends_ns)
    )
    memory = [sample for sample in run.close().memory if sample.at == "step"]
    assert [(sample.step, sample.rss_bytes) for sample in memory] == [
        (0, 2),
        (1, 2),
        (2, 3),
        (3, 3),
    ]
    assert looks == ["writer", "step", "step", "writer"]


def test_each_field_is_written_under_its_own_name(tmp_path: Path) -> None:
    times = {
        name: START_NS + place * 100
        for place, name in enumerate(
            ("issue_ns", "return_ns", "pending_ns", "done_ns", "wait_ns", "waited_ns"), 1
        )
    }
    record = Collective(
        id=3, op="reduce", group=1, seq=4, nbytes=5, elements=6, tensors=7, dtype="int8",
        is_async=True, reduce_op="MAX", peer=8, site=9, thread=10, stream=11, blocked_ns=12,
        waits=13, on_wire=False, captured=True, is_estimated=True,
        step=14, micro_step=15, phase="step",
        request=16, requested="all_reduce", flush=17, fetch=18, coalesced=19, outputs=(77,),
        **times,
    )  # fmt: skip
    fetch = Fetch(
        id=20, kind="prefetch", elements=21, wait_ns=22, step=14,
        micro_step=15, phase="step", thread=10,
        start_ns=START_NS + 700, end_ns=START_NS + 900, is_recomputation=True,
        library="FSDP2", module="head",
    )  # fmt: skip
    flush = Flush(
        id=23, stage=2, elements=24, capacity=25, nbytes=26, dtype="int8", parameters=27,
        cause="full", slot=1, step=14, micro_step=15, phase="step", engine=28,
        start_ns=START_NS + 700,
        end_ns=START_NS + 900, thread=10, library="FSDP1", module="tail", bucket=29,
    )  # fmt: skip
    copy = Copy(
        what="gradient", direction="to host", nbytes=30, step=14, micro_step=15, phase="step",
        start_ns=START_NS + 700, end_ns=START_NS + 900, thread=10,
    )  # fmt: skip
    run = Run(tmp_path)
    run.records.extend([record, fetch, flush, copy])
    run.close()
    events = {event["cat"]: event for event in json.loads(run.writer.path.read_text())}
    assert events["comm"]["args"] == {
        "id": 3, "group": 1, "seq": 4, "nbytes": 5, "elements": 6, "tensors": 7, "dtype": "int8",
        "is_async": True, "reduce_op": "MAX", "peer": 8, "site": 9, "stream": 11, "blocked_ns": 12,
        "waits": 13, "on_wire": False, "captured": True, "is_estimated": True, "step": 14,
        "micro_step": 15, "phase": "step", "request": 16, "requested": "all_reduce", "flush": 17,
        "fetch": 18, "coalesced": 19, "thread": 2,
        **{name: time_ns - START_NS for name, time_ns in times.items()},
    }  # fmt: skip
    assert events["fetch"]["args"] == {
        "id": 20, "kind": "prefetch", "elements": 21, "wait_ns": 22, "step": 14, "micro_step": 15,
        "phase": "step", "start_ns": 700, "end_ns": 900, "is_recomputation": True,
        "library": "FSDP2", "module": "head",
    }  # fmt: skip
    assert events["flush"]["args"] == {
        "id": 23, "stage": 2, "elements": 24, "capacity": 25, "nbytes": 26, "dtype": "int8",
        "parameters": 27, "cause": "full", "slot": 1, "step": 14, "micro_step": 15, "phase": "step",
        "engine": 28, "start_ns": 700, "end_ns": 900, "library": "FSDP1", "module": "tail",
        "bucket": 29,
    }  # fmt: skip
    assert events["copy"]["args"] == {
        "what": "gradient", "direction": "to host", "nbytes": 30, "step": 14, "micro_step": 15,
        "phase": "step", "start_ns": 700, "end_ns": 900,
    }  # fmt: skip
    assert (events["fetch"]["ts"], events["fetch"]["dur"]) == (0.7, 0.2)


def test_the_file_is_a_chrome_trace(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.records.extend(collective(number, 0) for number in range(1, 4))
    run.close()
    events = json.loads(run.writer.path.read_text())
    assert {"cat", "ph", "args"} <= events[0].keys()
    spans = [event for event in events if event.get("cat") == "comm"]
    assert [span["ts"] for span in spans] == [1.0, 2.0, 3.0]
    assert all(span["dur"] == 0.5 for span in spans)


def test_overlapping_collectives_are_on_lanes_of_their_own(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.records.extend([collective(1, 0, done_ns=START_NS + 9000), collective(2, 0)])
    run.close()
    events = json.loads(run.writer.path.read_text())
    lanes = [event["tid"] for event in events if event.get("cat") == "comm"]
    assert len(set(lanes)) == 2


def test_outside_the_window_collectives_are_counted(tmp_path: Path) -> None:
    run = Run(tmp_path, Window(start_step=1, steps=2, every=1))
    for step in range(4):
        run.records.extend(
            [
                collective(step * 10 + 1, step),
                collective(step * 10 + 2, step),
                Phase(START_NS, START_NS + 1, step, name="forward", thread=1),
                step_end(step),
            ]
        )
    trace = run.close()
    assert sorted(set(trace.collectives.step)) == [1, 2]
    assert sorted({span.step for span in trace.spans}) == [1, 2]
    assert [step.step for step in trace.steps] == [0, 1, 2, 3]
    assert {part.step: [(r.op, r.calls, r.nbytes, r.blocked_ns) for r in part.rows]
            for part in trace.counters} == {
        0: [("all_reduce", 2, 128, 960)],
        3: [("all_reduce", 2, 128, 960)],
    }  # fmt: skip
    assert run.writer.counted_only_steps == 2


def test_steps_in_counters_alone_are_counted_and_not_the_lines_of_counters(tmp_path: Path) -> None:
    run = Run(tmp_path, Window(start_step=1, steps=2, every=1))
    for step in range(4):
        run.records.extend([collective(step + 1, step), step_end(step)] if step else [step_end(0)])
    run.records.append(collective(9, 3))  # handed over late
    run.records.append(collective(10, 4))  # after the last step
    run.close()
    assert run.writer.counted_only_steps == 2


def test_what_never_reached_the_wire_is_counted_apart(tmp_path: Path) -> None:
    run = Run(tmp_path, Window(start_step=1, steps=None, every=1))
    run.records.extend([collective(1, 0), collective(2, 0, on_wire=False), step_end(0)])
    [counters] = run.close().counters
    assert [(row.on_wire, row.calls) for row in counters.rows] == [(True, 1), (False, 1)]


def test_after_the_budget_there_are_counters_only(tmp_path: Path) -> None:
    run = Run(tmp_path, budget=2000)
    for number in range(1, 3001):
        run.records.append(collective(number, 0))
    trace = run.close()
    assert run.writer.budget_spent
    counted = sum(row.calls for part in trace.counters for row in part.rows)
    assert 0 < len(trace.collectives) < 3000
    assert len(trace.collectives) + counted == 3000


@pytest.mark.parametrize(
    ("window", "wanted"),
    [
        (Window(), [0, 1, 2, 3, 4, 5]),
        (Window(start_step=2), [2, 3, 4, 5]),
        (Window(start_step=1, steps=3), [1, 2, 3]),
        (Window(start_step=1, every=2), [1, 3, 5]),
    ],
)
def test_window(window: Window, wanted: list[int]) -> None:
    assert [step for step in range(6) if window.holds(step)] == wanted
    assert window.holds(-1)


def test_a_second_run_does_not_overwrite_the_first(tmp_path: Path) -> None:
    for number in (1, 2):
        run = Run(tmp_path)
        run.records.append(collective(number, 0))
        run.close()
    files = sorted(tmp_path.glob(FILE_PATTERN))
    assert len(files) == 2
    assert sorted(int(read_trace(file).collectives.id[0]) for file in files) == [1, 2]


def test_what_is_recorded_is_written_within_half_a_second(tmp_path: Path) -> None:
    """So a killed process loses no more: the time that writing takes counts."""
    run = Run(tmp_path)
    run.writer._write_open = lambda: time.sleep(0.1)
    first, second = after_one_look(run)
    assert first + OPEN_AFTER_NS / 1e9 <= 0.5
    assert 0 < second <= first - 0.1


def slow(writer: TraceWriter) -> None:
    """Let a writer begin only once it is given up."""
    sample = writer._source.sample_memory

    def sample_late(at: str, step: int) -> MemorySample:
        while not writer._given_up:
            os.sched_yield()
        return sample(at, step)

    writer._source.sample_memory = sample_late


def test_a_writer_that_is_given_up_ends_before_the_interpreter_does(tmp_path: Path) -> None:
    """A daemon thread that is in C++ while Python shuts down would end the process by SIGABRT."""
    run = Run(tmp_path)
    run.unfinished.append(collective(5, 0, done_ns=0, waits=0))
    run.records += [collective(number, 0) for number in range(3)]
    slow(run.writer)
    run.writer.start()
    run.writer.close(
        lambda: Trailer("disable", dropped=run.writer.dropped), run.unfinished, timeout_s=0.0
    )
    assert isinstance(run.writer.error, TimeoutError)
    run.writer.wait()
    assert run.writer.is_done
    trace = read_trace(run.writer.path)
    assert len(trace.collectives) == 0
    assert trace.trailer == Trailer("disable", dropped=3)


def test_out_of_memory_in_the_writer_ends_the_trace_and_nothing_else(tmp_path: Path) -> None:
    run = Run(tmp_path)

    def starved(at: str, step: int) -> MemorySample:
        raise MemoryError

    run.writer._source.sample_memory = starved
    run.records.append(collective(1, 0))
    run.writer.start()
    while run.records:
        os.sched_yield()
    run.writer.close(lambda: Trailer("disable"), run.unfinished)
    assert isinstance(run.writer.error, MemoryError)
    assert run.writer.dropped == 1


@pytest.mark.parametrize(
    ("error", "ends", "note"),
    [
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            False,
            "the disk refused records: No space left on device",
        ),
        (
            MemoryError(),
            True,
            "the recording ended early, and 1,500 records were dropped: MemoryError",
        ),
    ],
    ids=["a full disk", "out of memory"],
)
def test_records_that_cannot_be_written_are_dropped_and_counted(
    tmp_path: Path, error: Exception, ends: bool, note: str
) -> None:
    run = Run(tmp_path)
    run.definitions.append(Note("written"))
    run.records.extend(collective(number, 0) for number in range(1, 1501))
    write = run.writer._append

    def append(data: bytes, events: int) -> None:
        if events > 99:
            raise error
        write(data, events)

    run.writer._append = append
    run.writer.start()
    run.writer.close(lambda: Trailer("disable"), run.unfinished)
    assert (run.writer.error is error) is ends
    assert run.writer.dropped == 1500
    assert [one.text for one in read_trace(run.writer.path).notes] == ["written", note]


def test_what_cannot_be_encoded_is_dropped_and_counted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.records.append(collective(1, 0))
    run.records.append(Phase(START_NS, START_NS + 1, 0, name="\udcff", thread=1))
    run.records.append(collective(2, 0))
    trace = run.close()
    assert list(trace.collectives.id) == [1, 2]
    assert trace.spans == []
    assert run.writer.dropped == 1


def test_a_failing_disk_ends_the_trace_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = Run(tmp_path / "file")
    run.records.append(collective(1, 0))
    run.writer.start()
    run.writer.close(lambda: Trailer("disable"), run.unfinished)
    assert isinstance(run.writer.error, OSError)


def test_stalls_and_steps_of_a_device_are_read_back(tmp_path: Path) -> None:
    run, at = Run(tmp_path, Window(start_step=1)), START_NS
    placed = Stall("event", 7, 42, 400, 3, 1, at + 100, at + 500, at + 50, 9, True)
    loose = Stall("wait", 0, 43, 80, step=1)
    outside = Stall("wait", 0, 44, 80, step=0)
    run.records.extend([placed, loose, outside, DeviceStep(0, at, at + 600, 9)])
    trace = run.close()
    assert trace.stalls == [
        Stall("event", 7, 42, 400, 3, 1, 100, 500, 50, 9, True),
        Stall("wait", 0, 43, 80, step=1),
    ]
    assert trace.device_steps == [DeviceStep(0, 0, 600, 9)]
    assert trace.broken_lines == 0


def test_flushes_and_fetches_are_read_back(tmp_path: Path) -> None:
    run = Run(tmp_path)
    at = {"start_ns": START_NS, "end_ns": START_NS + 500, "thread": 7, "step": 0}
    at |= {"phase": "backward", "library": "FSDP2", "module": "layers.0"}
    run.records.append(Flush(3, -1, 40, nbytes=160, dtype="float32", parameters=2, **at))
    run.records.append(Fetch(4, "release", 40, **at))
    trace = run.close()
    (flush,), (fetch,) = trace.flushes, trace.fetches
    assert (flush.elements, flush.bucket) == (40, -1)
    assert (flush.library, flush.module) == ("FSDP2", "layers.0")
    assert (fetch.kind, fetch.library, fetch.module, fetch.phase) == (
        "release",
        "FSDP2",
        "layers.0",
        "backward",
    )


def test_the_end_of_the_group_is_written_at_once_after_the_records_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "INTERVAL_S", 3600.0)
    run = Run(tmp_path)
    run.writer.start()
    while not run.writer.path.is_file():
        os.sched_yield()
    run.records += [collective(number, 0) for number in range(1, 3000)]
    run.writer.leave(GroupEnd(START_NS + 5))
    while b'"group_end"' not in (written := run.writer.path.read_bytes()):
        os.sched_yield()
    assert written.rstrip(b",\n").splitlines()[-1].startswith(b'{"cat":"group_end"')
    assert written.count(b'"comm"') == 2999
    run.writer.leave(GroupEnd())
    assert [end.time_ns for end in run.close_started().group_ends] in ([5], [5, 0])
