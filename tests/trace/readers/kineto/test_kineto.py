from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dsprof.errors import TraceError
from dsprof.trace.device_activity import ALLOCATION, COMMUNICATION, COMPUTE, COPY, TRANSFER
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers import READERS, reader_of
from dsprof.trace.readers.kineto import KinetoReader
from dsprof.trace.run import find_run, read_run
from tests.factories import kineto as make
from tests.factories import trace as native
from tests.factories.trace import MS
from tests.factories.trace_files import write_trace


def read(tmp_path: Path, events: list, **fields: object) -> RankTrace:
    return KinetoReader().read_trace(make.write(tmp_path / "anything", events, **fields))


def test_rank_world_and_device_come_from_the_content(tmp_path: Path) -> None:
    path = make.write(tmp_path / "rank7.json", [make.copy(0, 1)], rank=1, world_size=4)
    header = KinetoReader().read_header(path)
    assert (header.rank, header.world_size, header.backend) == (1, 4, "nccl")
    assert header.device == "cuda"
    assert header.versions["device"] == "NVIDIA H100"


def test_without_distributed_info_the_rank_comes_from_the_name(tmp_path: Path) -> None:
    for rank in range(3):
        make.write(tmp_path / f"x_rank{rank}.json", [make.copy(0, 1)], distributedInfo=None)
    run = find_run([tmp_path])
    assert [(h.rank, h.world_size) for h in run.headers] == [(0, 3), (1, 3), (2, 3)]
    assert [trace.header.world_size for trace in read_run(run)] == [3, 3, 3]


def test_information_behind_the_events_is_found(tmp_path: Path) -> None:
    document = json.loads(make.document([make.copy(0, 1)], rank=1))
    moved = document.pop("distributedInfo")
    path = tmp_path / "trace"
    path.write_text(json.dumps(document | {"distributedInfo": moved}))
    assert KinetoReader().read_header(path).rank == 1
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert KinetoReader().read_header(path).rank == 1


def test_a_list_in_an_event_is_not_the_end_of_the_events(tmp_path: Path) -> None:
    event = make.kernel("k", 0, 1, grid=[1], baseTimeNanoseconds=1) | {"ts": 5.0}
    told = {"INFO": ["a"], "baseTimeNanoseconds": 1_700_000_000 * 10**9}
    path, packed = tmp_path / "t", tmp_path / "packed"
    for events in ([event], [event] * 9000):  # shorter and longer than what is read of the end
        path.write_bytes(make.document(events, distributedInfo=None, deviceProperties=None, **told))
        packed.write_bytes(gzip.compress(path.read_bytes()))
        for one in (path, packed):
            started = KinetoReader().read_header(one).started_epoch_ns
            assert started == 1_700_000_000 * 10**9 + 5000


def test_times_relative_to_a_base_are_placed_in_real_time(tmp_path: Path) -> None:
    event = make.span("kernel", "k", 0, 1) | {"ts": 4_000_000.5}
    path = make.write(tmp_path / "t", [event], baseTimeNanoseconds=1_700_000_000 * 10**9)
    assert KinetoReader().read_header(path).started_epoch_ns == 1_700_000_004 * 10**9 + 500


def test_kernels_copies_and_streams(tmp_path: Path) -> None:
    events = [make.kernel(make.GEMM, 0, 2), make.collective(1, 3), make.copy(5, 1.5)]
    device = read(tmp_path, events).device
    assert device is not None
    assert device.kind.tolist() == [COMPUTE, COMMUNICATION, COPY]
    assert device.stream.tolist() == [7, 20, 7]
    assert device.start_ns.tolist() == [0, 1_000_000, 5_000_000]
    assert (device.end_ns - device.start_ns).tolist() == [2_000_000, 3_000_000, 1_500_000]


def test_the_busiest_device_of_a_process_is_judged(tmp_path: Path) -> None:
    def on(device: int | str, event: dict[str, Any]) -> dict[str, Any]:
        return event | {"pid": device}

    mine = [on(1, make.kernel("gemm", 10, 5)), on(1, make.collective(15, 2))]
    others = [on(0, make.kernel("gemm", 0, 3)), on(0, make.collective(3, 2))]
    trace = read(tmp_path, [*others, *mine])
    assert trace.device is not None
    assert trace.device.start_ns.tolist() == [10 * MS, 15 * MS]
    assert trace.device.elsewhere.tolist() == [[0, 3 * MS], [3 * MS, 5 * MS]]
    assert len(trace.collectives) == 1
    assert "2 devices: device 1 is judged" in trace.notes[0].text
    named = read(tmp_path, [on("GPU 0", others[0]), on("GPU 1", mine[0])])
    assert "2 devices: the busiest is judged" in named.notes[0].text


def test_steps_are_placed_by_the_device_that_is_judged(tmp_path: Path) -> None:
    host = [make.step(n, 10 * n, 10) for n in range(3)]
    late = [make.kernel("gemm", 30 + 20 * n, 20) for n in range(3)]
    first = [on_device(n, 1 + 10 * n) | {"pid": 1} for n in range(3)]
    marks = [on_device(n, 30 + 20 * n) for n in range(3)]
    other = make.kernel("gemm", 1, 1) | {"pid": 1}
    expected = [(0, 0, 20), (1, 20, 40), (2, 40, 60)]
    assert steps_read(tmp_path, [*host, *late, other, *first, *marks]) == expected


def test_merged_profiles_of_several_processes_are_refused(tmp_path: Path) -> None:
    ops = [make.of_process(100 + n % 2) for n in range(10)]
    with pytest.raises(TraceError, match="several processes, merged into one file"):
        read(tmp_path, [*ops, make.kernel("gemm", 0, 1)])


def test_a_merged_file_beside_the_files_of_ranks_hides_none_of_them(tmp_path: Path) -> None:
    profile = [make.of_process(100), make.kernel("gemm", 0, 1)]
    both = [event | {"pid": f"[TP0{n % 2}] 100"} for n, event in enumerate([*profile, *profile])]
    own = make.write(tmp_path / "rank0.json", profile)
    make.write(tmp_path / "merged.json", both)
    run = find_run([tmp_path])
    assert run.files == (own,)
    assert "merged into one file" in run.strangers[0].reason


def test_a_damaged_number_of_a_process_refuses_no_file(tmp_path: Path) -> None:
    ops = [make.of_process(100) for n in range(200)]
    assert read(tmp_path, [*ops, make.of_process(7)]).broken_lines == 0


def test_the_old_schema_is_read(tmp_path: Path) -> None:
    old = [
        make.span("Kernel", make.NCCL, 0, 1, args={"stream": "20"}),
        make.span("Memcpy", "Memcpy DtoH", 1, 1),
        make.span("Memset", "Memset (Device)", 2, 1),
        make.span("Operator", "ProfilerStep#3", 0, 4),
    ]
    trace = read(tmp_path, old, deviceProperties=None)
    assert trace.device is not None
    assert trace.device.kind.tolist() == [COMMUNICATION, COPY, COPY]
    assert trace.header.device == "cuda"
    assert [s.step for s in trace.steps] == [3]


def test_a_collective_has_its_size_group_and_step(tmp_path: Path) -> None:
    events = [make.step(5, 0, 10), make.collective(1, 2), make.collective(11, 2)]
    trace = read(tmp_path, events)
    rows = trace.collectives
    assert [rows.words[code] for code in rows.op] == ["allreduce", "allreduce"]
    assert rows.nbytes.tolist() == [2 << 20, 2 << 20]
    assert rows.step.tolist() == [5, -1]
    (group,) = trace.groups.values()
    assert (group.label, group.size, group.ranks) == ("world", 2, [0, 1])
    assert rows.done_ns[0] - rows.issue_ns[0] == 2_000_000


def test_groups_that_another_tool_wrote_anew(tmp_path: Path) -> None:
    told = {"Process Group Name": 0, "Process Group Ranks": [0, 1]}
    trace = read(tmp_path, [make.kernel(make.GEMM, 0, 5), make.collective(10, 5, **told)])
    assert trace.broken_lines == 0
    group = trace.groups[trace.collectives.group.tolist()[0]]
    assert (group.name, group.ranks) == ("0", [0, 1])


def test_a_last_event_that_is_broken_cuts_nothing_off(tmp_path: Path) -> None:
    broken = make.kernel(make.GEMM, 10, 5) | {"name": [1]}
    trace = read(tmp_path, [make.kernel(make.GEMM, 0, 5), broken])
    assert trace.broken_lines == 1
    assert trace.trailer is not None


def test_an_all_gather_counts_what_comes_out(tmp_path: Path) -> None:
    event = make.collective(0, 1, "_allgather_base", **{"Out msg nelems": 8 << 20})
    assert read(tmp_path, [event]).collectives.nbytes.tolist() == [16 << 20]


def test_the_profilers_word_counts_more_than_the_kernels_name(tmp_path: Path) -> None:
    device = read(tmp_path, [make.collective(0, 1, name="some_kernel")]).device
    assert device is not None
    assert device.kind.tolist() == [COMMUNICATION]
    assert device.is_usual.tolist() == [False]


def test_collectives_of_gloo_are_spans_of_the_host(tmp_path: Path) -> None:
    event = make.span("user_annotation", "gloo:all_reduce", 1, 4)
    trace = read(tmp_path, [event], deviceProperties=[])
    assert trace.device is None
    assert [trace.collectives.words[c] for c in trace.collectives.op] == ["all_reduce"]


def plain_kernel(at: float, number: int | None = None) -> dict[str, Any]:
    told = {} if number is None else {"External id": number}
    return make.kernel("ncclDevKernel_Generic(ncclDevKernelArgsStorage)", at, 2, 20, **told)


def test_a_kernel_without_metadata_is_what_its_call_said(tmp_path: Path) -> None:
    events = [plain_kernel(5, 9), plain_kernel(8), make.issued(9, 1), make.issued(11, 2)]
    trace = read(tmp_path, events)
    rows = trace.collectives
    assert [rows.words[code] for code in rows.op] == ["allreduce", "not named"]
    assert rows.nbytes.tolist() == [2 << 20, 0]
    assert trace.groups[int(rows.group[0])].label == "world"
    # Times and stream are the kernel's.
    assert (rows.done_ns - rows.issue_ns).tolist() == [2_000_000, 2_000_000]
    assert rows.stream.tolist() == [20, 20]


def test_the_size_of_a_call_is_not_given_to_each_of_its_kernels(tmp_path: Path) -> None:
    rows = read(tmp_path, [make.issued(9, 1), plain_kernel(5, 9), plain_kernel(8, 9)]).collectives
    assert rows.nbytes.tolist() == [0, 0]


def test_without_a_device_collectives_are_known_by_their_calls(tmp_path: Path) -> None:
    events = [make.issued(9, 1), make.issued(10, 2, "wait"), make.issued(11, 3, "_allgather_base")]
    trace = read(tmp_path, [*events, make.span("cpu_op", "record_param_comms", 4, 1)])
    rows = trace.collectives
    assert trace.device is None
    assert [rows.words[code] for code in rows.op] == ["allreduce", "_allgather_base"]
    assert rows.nbytes.tolist() == [2 << 20, 2 << 20]
    assert rows.done_ns.tolist() == [0, 0]
    assert trace.header.device == "cuda"


def test_a_name_that_only_begins_like_torchs_record_is_nothing(tmp_path: Path) -> None:
    told = make.issued(9, 1)
    trace = read(tmp_path, [told, told | {"name": "record_param_comms_of_mine"}])
    assert len(trace.collectives) == 1


def test_many_events_are_read_in_chunks_and_batches(tmp_path: Path) -> None:
    def group(at: float) -> list[dict[str, Any]]:
        one = make.span("cpu_op", "aten::mm", at, 1, args={"Ev Idx": round(at)})
        return [one, make.kernel(make.GEMM, at, 1), make.collective(at, 2), make.copy(at, 1)]

    trace = read(tmp_path, [event for n in range(1500) for event in group(10.0 * n)])
    device, rows = trace.device, trace.collectives
    assert device is not None
    assert device.start_ns.tolist() == [n * 10_000_000 for n in range(1500) for _ in range(3)]
    assert device.kind.tolist() == [COMPUTE, COMMUNICATION, COPY] * 1500
    assert rows.issue_ns.tolist() == [n * 10_000_000 for n in range(1500)]
    assert set((rows.done_ns - rows.issue_ns).tolist()) == {2_000_000}
    assert (trace.broken_lines, trace.is_sampled) == (0, True)


def test_an_event_that_is_longer_than_a_chunk_is_whole(tmp_path: Path) -> None:
    frames = [{"file": "train.py", "line": line} for line in range(10_000)]
    long = make.kernel("long", 500, 1, frames=frames)
    events = [make.kernel("short", at, 1) for at in range(1000)]
    trace = read(tmp_path, [*events[:500], long, *events[500:]])
    assert trace.device is not None
    assert (len(trace.device.start_ns), trace.broken_lines) == (1001, 0)


def test_sizes_of_gloo_come_from_recorded_shapes(tmp_path: Path) -> None:
    config = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]}]
    who = {"backend": "gloo", "rank": 0, "world_size": 4}
    events = [
        make.gloo("all_reduce", 1, [[10, 20]]),
        make.gloo("all_gather", 3, [[10]], "c10::BFloat16"),
        make.gloo("barrier", 5, [[-1]]),
        make.gloo("broadcast", 7, "damaged"),
        make.gloo("broadcast", 9, [[1 << 62] * 99]),
    ]
    alone = read(tmp_path, events, deviceProperties=[], distributedInfo=who | {"pg_config": config})
    rows = alone.collectives
    assert rows.nbytes.tolist() == [800, 80, 0, 0, 0]
    assert {alone.groups[int(number)].label for number in rows.group} == {"world"}
    # Of several groups nobody knows which it was, and a gather has no total.
    config.append({"pg_name": "1", "pg_desc": "half", "pg_size": 2, "ranks": [0, 1]})
    several = read(
        tmp_path, events, deviceProperties=[], distributedInfo=who | {"pg_config": config}
    )
    assert several.collectives.nbytes.tolist() == [800, 0, 0, 0, 0]
    assert {several.groups[int(n)].label for n in several.collectives.group} == {"unknown"}


def op(number: int, **args: Any) -> dict[str, Any]:
    return make.span("cpu_op", "aten::mm", number % 1000, 1, args={"Ev Idx": number} | args)


def test_events_that_were_left_out_are_noticed(tmp_path: Path) -> None:
    assert not read(tmp_path, [op(n) for n in range(10)]).is_sampled
    sample = read(tmp_path, [op(n) for n in range(0, 1000, 10)])
    assert sample.is_sampled
    assert "100 of about 991" in sample.notes[-1].text


def test_a_window_of_a_longer_recording_is_whole(tmp_path: Path) -> None:
    """Inference servers cut a window out of a recording: its numbers begin anywhere."""
    assert not read(tmp_path, [op(n) for n in range(33_000, 33_200)]).is_sampled
    outer = op(17)  # begins before the window
    assert not read(tmp_path, [outer, *(op(n) for n in range(900_000, 900_200))]).is_sampled


def test_numbers_of_operators_count_before_those_of_all_events(tmp_path: Path) -> None:
    """A tool that takes the Python functions out of a file leaves all that is judged."""
    kept = [op(10 * n, **{"External id": 4000 + n}) for n in range(100)]
    assert not read(tmp_path, kept).is_sampled
    launched = [make.kernel(make.GEMM, n, 1, **{"External id": 7 * n}) for n in range(100)]
    assert not read(tmp_path, [*kept, *launched]).is_sampled


def test_threads_number_their_operators_in_blocks_of_their_own(tmp_path: Path) -> None:
    blocks = [op(512 * thread + n) for thread in range(8) for n in range(20)]
    assert not read(tmp_path, blocks).is_sampled


def test_a_file_that_is_cut_gives_its_whole_events(tmp_path: Path) -> None:
    whole = make.document([make.copy(n, 0.5) for n in range(50)])
    path = tmp_path / "cut"
    for length in range(whole.index(b'"ph"'), len(whole) - 1, 97):
        path.write_bytes(whole[:length])
        trace = KinetoReader().read_trace(path)
        rows = len(trace.device) if trace.device is not None else 0
        assert abs(rows - whole[:length].count(b"HtoD")) <= 1
        in_events = length < whole.index(b'"traceName"') - 10
        assert (trace.trailer is None) == in_events or not in_events


def test_numbers_that_json_has_not_cost_no_event(tmp_path: Path) -> None:
    text = make.document([make.kernel(make.GEMM, 0, 1, warps=1.5), make.copy(2, 1)])
    path = tmp_path / "nan"
    path.write_bytes(text.replace(b"1.5", b"-inf"))
    trace = KinetoReader().read_trace(path)
    assert trace.device is not None
    assert (len(trace.device), trace.broken_lines) == (2, 0)


def test_a_broken_event_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    text = make.document([make.kernel(make.GEMM, n, 0.5) for n in range(100)])
    path = tmp_path / "flipped"
    path.write_bytes(text.replace(b'"kernel"', b'"ker\x00nel', 1))
    trace = KinetoReader().read_trace(path)
    assert trace.device is not None
    assert (len(trace.device), trace.broken_lines) == (99, 1)


def test_events_of_other_phases_are_passed_over_and_of_none_are_broken(tmp_path: Path) -> None:
    others = [{"ph": phase, "name": "other", "ts": make.START_US} for phase in "MiIsftBEbenCPNODc"]
    trace = read(tmp_path, [make.kernel(make.GEMM, 0, 1), *others, make.copy(2, 1)])
    assert trace.device is not None
    assert (len(trace.device), trace.broken_lines) == (2, 0)
    damaged = [{"name": "k", "cat": "kernel"}, make.copy(3, 1) | {"ph": "?"}]
    trace = read(tmp_path, [make.kernel(make.GEMM, 0, 1), *damaged, make.copy(2, 1)])
    assert trace.device is not None
    assert (len(trace.device), trace.broken_lines) == (2, 2)


def test_content_decides_not_the_name(tmp_path: Path) -> None:
    foreign = make.write(tmp_path / "trace.rank00000.json", [make.copy(0, 1)])
    own = write_trace(tmp_path / "kineto.json", native.header(0, 1))
    assert [type(reader_of(path)).__name__ for path in (foreign, own)] == [
        "KinetoReader",
        "NativeReader",
    ]
    assert len({reader.name for reader in READERS}) == len(READERS)


def test_plain_gzip_and_zip_are_one_run(tmp_path: Path) -> None:
    files = [make.document([make.copy(0, 1)], rank=rank, world_size=4) for rank in range(4)]
    (tmp_path / "a").write_bytes(files[0])
    (tmp_path / "b").write_bytes(gzip.compress(files[1]))
    with zipfile.ZipFile(tmp_path / "c.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inside/r2.json", files[2])
        archive.writestr("inside/r3.json.gz", gzip.compress(files[3]))
    run = find_run([tmp_path])
    assert [trace.rank for trace in read_run(run)] == [0, 1, 2, 3]


def test_copies_strangers_and_broken_files_are_listed(tmp_path: Path) -> None:
    for rank in range(2):
        make.write(tmp_path / f"{rank}.pt.trace.json", [make.copy(0, 1)], rank=rank)
    make.write(tmp_path / "copy.pt.trace.json", [make.copy(0, 1)], rank=1)
    (tmp_path / "cut.pt.trace.json").write_bytes(b'{"schemaVersion": 1, "devi')
    (tmp_path / "notes.txt").write_text("not a trace")
    run = find_run([tmp_path])
    assert [header.rank for header in run.headers] == [0, 1]
    assert sorted(stranger.path.name for stranger in run.strangers) == [
        "copy.pt.trace.json",
        "cut.pt.trace.json",
    ]


def test_of_a_whole_file_and_a_cut_one_the_whole_one_is_read(tmp_path: Path) -> None:
    whole = make.document(make.steps(3, 40, 20), world_size=1)
    (tmp_path / "a.json").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(whole))
    (tmp_path / "c.json").write_bytes(whole[: len(whole) // 3])
    run = find_run([tmp_path])
    assert run.files == (tmp_path / "b.json.gz",)
    assert {stranger.path.name for stranger in run.strangers} == {"a.json", "c.json"}


@pytest.mark.parametrize(
    ("name", "host", "pid"),
    [
        ("node-7.cluster_4711.1694128201557000000.pt.trace.json", "node-7.cluster", 4711),
        ("worker0_step_12.1694128201545.pt.trace.json", "", 0),  # a step, no process
        ("run_0.1694128201545.pt.trace.json", "", 0),  # the number of a device
        ("rank3_4711.1694128201545.pt.trace.json", "", 0),  # a rank, no host
        ("node-7.json", "", 0),
    ],
)
def test_a_name_tells_the_host_where_it_tells_the_process(
    tmp_path: Path, name: str, host: str, pid: int
) -> None:
    path = make.write(tmp_path / name, [make.of_process(4711), make.copy(0, 1)])
    header = KinetoReader().read_header(path)
    assert (header.host, header.boot_id, header.pid) == (host, host, pid)


def test_a_second_window_of_a_process_is_no_other_run(tmp_path: Path) -> None:
    for number, later in enumerate((0, 1000)):
        name = f"node7_4242.{1_700_000_000_000 + number}.pt.trace.json"
        call = make.span("cpu_op", "aten::empty", later, 0.1, pid=4242)
        make.write(tmp_path / name, [call, make.kernel("gemm", later, 1)])
    [stranger] = find_run([tmp_path]).strangers
    assert "rank 0 of an earlier window of the same process" in stranger.reason


def test_whether_two_profiles_of_a_rank_are_of_one_run_is_unknown(tmp_path: Path) -> None:
    for later in (0, 1000):
        make.write(tmp_path / f"step{later}.json", [make.kernel("gemm", later, 1)])
    [stranger] = find_run([tmp_path]).strangers
    assert "rank 0 of another recording" in stranger.reason


def test_files_that_say_neither_rank_nor_host_are_copies_by_content_alone(tmp_path: Path) -> None:
    for name, took in (("a", 1), ("b", 2), ("again", 1)):
        events = [make.copy(0, took)]
        make.write(tmp_path / f"{name}.json", events, distributedInfo=None)
    told = {stranger.path.name: stranger.reason for stranger in find_run([tmp_path]).strangers}
    assert "a copy of" in told.pop("again.json")
    assert [reason for reason in told.values() if "a copy of" in reason] == []


def test_a_file_without_events_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b'{"schemaVersion": 1, "deviceProperties": []}')
    with pytest.raises(TraceError, match="no list of traceEvents"):
        KinetoReader().read_header(path)


@pytest.mark.parametrize(
    ("head", "why"),
    [({"schemaVersion": 1}, "the profiler recorded nothing; check that its schedule"), ({}, "dur")],
)
def test_a_file_whose_events_have_no_times_is_refused(
    tmp_path: Path, head: dict[str, int], why: str
) -> None:
    events = [{"ph": "M", "name": "process_name"}, {"ph": "B", "name": "Exec", "ts": 5.0}]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**head, "traceEvents": events}))
    with pytest.raises(TraceError, match=why):
        find_run([path])


@pytest.mark.parametrize("span", ['{"ph": "X", "ts": 5.0, "du', '{"ph": "X", "ts": "?"}]}'])
def test_a_file_without_a_whole_event_is_not_called_empty(tmp_path: Path, span: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": [{{"ph": "M", "name": "x"}}, {span}')
    with pytest.raises(TraceError, match="truncated or damaged before the first event"):
        find_run([path])


def test_a_rank_without_a_world_size_does_not_tell_how_many_ranks_there_were(
    tmp_path: Path,
) -> None:
    path = make.write(tmp_path / "x", [make.step(1, 0, 9)], distributedInfo={"rank": 3})
    (trace,) = read_run(find_run([path]))
    assert (trace.header.rank, trace.is_world_known) == (3, False)


@pytest.mark.parametrize(
    ("category", "device"),
    [("hpu_op", "Gaudi"), ("mtia_ccp_events", "MTIA"), ("privateuse1_runtime", "custom backend")],
)
def test_a_profile_of_a_device_that_is_not_read_is_refused(
    tmp_path: Path, category: str, device: str
) -> None:
    host = [make.of_process(1), make.step(1, 0, 9)]
    with pytest.raises(TraceError, match=device):
        read(tmp_path, [*host, make.span(category, "matmul", 1, 2)])


@pytest.mark.parametrize("category", [None, "", "Module", "tpu"])
def test_a_chrome_trace_of_another_tool_is_refused(tmp_path: Path, category: str | None) -> None:
    event = make.span("", "fusion.12", 1, 2) | {"cat": category}
    events = [{key: value for key, value in event.items() if value is not None}] * 3
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))
    with pytest.raises(TraceError, match=r"not of torch\.profiler"):
        list(KinetoReader().read_traces(path))


def test_kernels_of_intel_devices_are_read(tmp_path: Path) -> None:
    events = [make.span("xpu_runtime", "urEnqueueKernelLaunch", 0, 1), make.kernel("gemm", 1, 2)]
    trace = read(tmp_path, [*events, make.kernel("oneccl_allreduce", 3, 1)], deviceProperties=[])
    assert trace.header.device == "xpu"
    assert trace.device is not None
    assert len(trace.collectives) == 1


def test_a_profile_of_ascend_would_seem_to_wait_for_nothing(tmp_path: Path) -> None:
    flow = {"ph": "s", "cat": "async_npu", "name": "async_npu", "id": 1, "ts": make.START_US}
    host = [make.step(1, 0, 9), flow]
    with pytest.raises(TraceError, match="Ascend"):
        read(tmp_path, host)
    assert read(tmp_path, [*host, make.kernel(make.GEMM, 1, 2)]).device is not None


def test_an_empty_list_of_events_is_an_empty_trace(tmp_path: Path) -> None:
    trace = read(tmp_path, [])
    assert (len(trace.collectives), trace.device, trace.broken_lines) == (0, None, 0)
    assert trace.trailer is not None


def test_calls_that_may_keep_the_device_idle_are_kept(tmp_path: Path) -> None:
    events = [
        make.kernel(make.GEMM, 0, 5),
        make.span("cpu_op", "aten::to", 5, 4),
        make.span("cpu_op", "aten::copy_", 5.5, 3),
        make.span("user_annotation", "fetch", 4, 6),
        make.span("user_annotation", "ProfilerStep#1", 5, 5),
        make.span("cuda_runtime", "cudaMemcpyAsync", 6, 2),
        make.span("cuda_runtime", "cudaMemcpyAsync", 6, 2, tid=8),
        make.span("cuda_runtime", "cudaLaunchKernel", 9, 0.005),
        make.span("cuda_runtime", "cudaEventQuery", 10, 1),
        make.span("cuda_runtime", "hipFree", 12, 1),
    ]
    device = read(tmp_path, events).device
    assert device is not None
    assert device.host is not None
    host = device.host
    assert [host.words[code] for code in host.name] == ["cudaMemcpyAsync"] * 2 + ["hipFree"]
    assert host.kind.tolist() == [TRANSFER, TRANSFER, ALLOCATION]
    assert [host.words[code] for code in host.operator] == ["aten::to", "", ""]
    assert [host.words[code] for code in host.annotation] == ["fetch", "", ""]
    assert host.launches.tolist() == [True, False, True]
    assert (host.operators[1] - host.operators[0]).tolist() == [4_000_000]


def test_a_recording_of_the_device_alone_has_no_host(tmp_path: Path) -> None:
    device = read(tmp_path, [make.kernel(make.GEMM, 0, 5)]).device
    assert device is not None
    assert device.host is None


def on_device(number: int, at: float) -> dict[str, Any]:
    return make.span("gpu_user_annotation", f"ProfilerStep#{number}", at, 0.01)


def steps_read(tmp_path: Path, events: list) -> list[tuple[int, int, int]]:
    steps = read(tmp_path, events).steps
    first = steps[0].start_ns
    return [
        (s.step, (s.start_ns - first) // 1_000_000, (s.end_ns - first) // 1_000_000) for s in steps
    ]


def test_an_empty_last_step_is_the_profiler_being_stopped(tmp_path: Path) -> None:
    marked = [make.step(1, 0, 10), make.step(2, 10, 1)]
    assert len(steps_read(tmp_path, [*marked, make.kernel("gemm", 2, 3)])) == 1
    assert len(steps_read(tmp_path, [*marked, make.kernel("gemm", 10.2, 3)])) == 2
    assert len(steps_read(tmp_path, marked)) == 2  # no device was recorded


def test_steps_are_where_a_device_that_runs_behind_works_on_them(tmp_path: Path) -> None:
    host = [make.step(n, 10 * n, 10) for n in range(3)]
    late = [make.kernel("gemm", 30 + 20 * n, 20) for n in range(3)]
    marks = [on_device(n, 30 + 20 * n) for n in range(3)]
    behind = [(0, 0, 20), (1, 20, 40), (2, 40, 60)]
    assert steps_read(tmp_path, [*host, *late, *marks]) == behind
    assert steps_read(tmp_path, [*host, *late]) == [(0, 0, 10), (1, 10, 20), (2, 20, 30)]
    assert steps_read(tmp_path, [*host, *late, *marks[1:]])[2] == (2, 20, 30)


@pytest.mark.parametrize(
    "name", ["aten::_mps_convolution", "aten::_scaled_dot_product_attention_math_for_mps"]
)
def test_operators_of_mps_show_that_the_device_is_not_the_cpu(tmp_path: Path, name: str) -> None:
    events = [make.step(0, 0, 10), make.span("cpu_op", name, 1, 5)]
    fields = {"deviceProperties": None, "distributedInfo": None}
    assert read(tmp_path, events, **fields).header.device == "mps"
    other = [make.step(0, 0, 10), make.span("cpu_op", "aten::addmps2", 1, 5)]
    assert read(tmp_path, other, **fields).header.device == "cpu"
