"""Dumps of flight recorders, made by hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.errors import TraceError
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers import reader_of
from dsprof.trace.run import find_run, read_run
from tests.factories import flight as make

CALLS = [make.call(1, done=True), make.call(2, line=7), make.call(2, "all_to_all", group="5")]
GROUPS = {"0": [0, 1, 2], "5": [1, 2], "11": [1]}


def read(*paths: Path) -> list[RankTrace]:
    return list(read_run(find_run(paths)))


@pytest.mark.parametrize("as_json", [False, True])
def test_pickles_and_json_say_the_same(tmp_path: Path, as_json: bool) -> None:
    [trace] = read(make.write(tmp_path, 1, make.document(CALLS, GROUPS), as_json=as_json))
    assert trace.flight is not None
    first, second, third = trace.flight.entries
    assert (first.state, second.state, second.op, third.op) == (
        "completed",
        "scheduled",
        "all_reduce",
        "all_to_all",
    )
    assert (second.seq, second.dtype, second.input_sizes) == (2, "Float", ((1024,),))
    assert second.frame == "/home/me/train.py:7 train"
    assert trace.flight.groups["5"].ranks == (1, 2)
    assert (trace.header.world_size, trace.header.versions) == (3, {"nccl": "2.27.3"})


def test_the_rank_is_the_one_that_is_in_all_groups_whatever_the_name_says(tmp_path: Path) -> None:
    path = make.write(tmp_path, 1, make.document(CALLS, GROUPS))
    assert [trace.rank for trace in read(path.rename(tmp_path / "mine_0"))] == [1]


@pytest.mark.parametrize("name", ["_dump_2", "nccl_trace_rank_2", "fr.rank2.pkl", "x-2.pickle"])
def test_where_groups_leave_it_open_the_name_says_the_rank(tmp_path: Path, name: str) -> None:
    path = make.write(tmp_path, 0, make.document(CALLS, {"0": [0, 1, 2, 3]}))
    assert read(path.rename(tmp_path / name))[0].rank == 2


def test_a_dump_without_the_default_group_does_not_say_how_many_ranks_there_are(
    tmp_path: Path,
) -> None:
    for rank, groups in enumerate(({"5": [0, 1]}, {"5": [0, 1], "7": [1, 2]}, {"7": [1, 2]})):
        make.write(tmp_path, rank, make.document([make.call(1, group="7")], groups))
    run = find_run([tmp_path])
    assert [head.world_size for head in run.headers] == [3, 3, 3]
    assert run.strangers == ()


@pytest.mark.parametrize("name", ["dump", "nccl_trace_rank_9"])
def test_a_dump_of_nobody_is_refused(tmp_path: Path, name: str) -> None:
    path = make.write(tmp_path, 0, make.document(CALLS, {"0": [0, 1, 2, 3]}))
    with pytest.raises(TraceError, match="neither the dump nor its file name states the rank"):
        find_run([path.rename(tmp_path / name)])


@pytest.mark.parametrize(
    ("pg_id", "counters"),
    [(2, {"0": 3, "5": 7, "11": 9}), (4, {"0": -1, "5": 9, "11": -1})],
    ids=["in that order", "in another"],
)
def test_counters_of_groups_without_entries_are_found_by_the_order_of_groups(
    tmp_path: Path, pg_id: int, counters: dict[str, int]
) -> None:
    status = {"0": (3, 3), "2": (7, 6), "4": (9, 9)}
    dump = make.document([make.call(7, group="5", pg_id=pg_id)], GROUPS, status=status)
    [trace] = read(make.write(tmp_path, 1, dump))
    assert trace.flight is not None
    assert {name: one.last_enqueued for name, one in trace.flight.groups.items()} == counters


def test_sends_and_receives_are_told_apart(tmp_path: Path) -> None:
    calls = [make.call(4, "send 0->1", is_p2p=True, p2p_seq_id=9), make.call(4, "recv 0<-1")]
    [trace] = read(make.write(tmp_path, 0, make.document(calls)))
    assert trace.flight is not None
    assert [(e.op, e.source, e.target) for e in trace.flight.entries] == [
        ("send", 0, 1),
        ("recv", 1, 0),
    ]
    assert [entry.is_p2p for entry in trace.flight.entries] == [True, True]


@pytest.mark.parametrize(
    ("backend", "device"), [("nccl", "cuda"), ("ncclx", "cuda"), ("xccl", "xpu"), ("hccl", "npu")]
)
def test_the_backend_says_the_device(tmp_path: Path, backend: str, device: str) -> None:
    calls = [make.call(1, backend=backend)]
    [trace] = read(make.write(tmp_path, 1, make.document(calls, GROUPS)))
    assert (trace.header.backend, trace.header.device) == (backend, device)


def test_a_call_without_a_backend_has_its_operation(tmp_path: Path) -> None:
    calls = [make.call(1, backend="", profiling_name="broadcast")]
    [trace] = read(make.write(tmp_path, 1, make.document(calls, GROUPS)))
    assert trace.flight is not None
    assert (trace.header.backend, trace.flight.entries[0].op) == ("nccl", "broadcast")


def test_gloo_never_learns_what_has_ended(tmp_path: Path) -> None:
    [trace] = read(make.write(tmp_path, 1, make.gloo([make.call(1, backend="gloo")]), as_json=True))
    assert trace.flight is not None
    assert not trace.flight.knows_completion
    assert (trace.header.backend, trace.header.device) == ("gloo", "cpu")
    assert trace.flight.groups["0"].label == "default_pg"


def test_a_gzipped_dump_is_read(tmp_path: Path) -> None:
    path = make.write(tmp_path, 1, make.document(CALLS))
    packed = path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert [trace.rank for trace in read(packed)] == [1]


def test_other_pickles_and_objects_are_not_dumps(tmp_path: Path) -> None:
    other = tmp_path / "other.pkl"
    for data in (b"\x80\x04]\x94.", b'{"pg_config": 1}', b'[{"pg_config": 1, "pg_status": 2}]'):
        other.write_bytes(data)
        assert reader_of(other) is None


def test_a_dump_without_entries_is_refused_in_one_line(tmp_path: Path) -> None:
    path = make.write(tmp_path, 0, make.document([]) | {"entries": 3})
    with pytest.raises(TraceError, match="no entries"):
        find_run([path])


def test_a_group_that_only_the_number_of_entries_names_is_drawn(tmp_path: Path) -> None:
    """As in dumps of old releases: each rank numbers its groups."""
    for rank, last in enumerate((4, 3)):
        calls = [make.call(seq, done=seq < 4, process_group=None) for seq in range(1, last + 1)]
        make.write(tmp_path, rank, make.document(calls, pg_config={}))
    diagnosis = diagnose(find_run([tmp_path]))
    [failed] = [one for one in diagnosis.findings if one.rule == "stuck-collective"]
    assert failed.summary.startswith("Rank 1 never entered all_reduce 4 of group 0")
    assert diagnosis.timelines
