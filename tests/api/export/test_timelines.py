"""Timelines of all ranks: what Perfetto's own definitions decode, and what Chrome's JSON says."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsprof.analysis.summarise import align_run
from dsprof.api.export.chrome import write_chrome
from dsprof.api.export.perfetto import write_perfetto
from dsprof.api.export.timeline import RankTracks, Slice, each_rank, edges
from dsprof.errors import DsprofError
from dsprof.trace.lines import LINES, Line
from dsprof.trace.run import find_run
from tests.factories import trace as make
from tests.factories.trace_files import encode, write_run

START_NS = 50 * make.SECOND
"""When rank 0 was started; rank 1 was 30 ms later."""


def write(folder: Path, *ranks: Sequence[Line]) -> Path:
    for rank, lines in enumerate(ranks):
        started = START_NS + make.ns(30) * rank
        head = make.header(rank, len(ranks), started_monotonic_ns=started)
        first = [LINES["header"](args=head), LINES["group"](args=make.group(len(ranks)))]
        body = [*first, *lines, LINES["trailer"](args=make.Trailer("exit"))]
        (folder / f"trace.rank{rank:05d}.json").write_bytes(encode(body))
    return folder


def rank_tracks(folder: Path) -> Any:
    run = find_run([folder])
    return each_rank(run, align_run(run))


def chrome(folder: Path) -> list[dict[str, Any]]:
    file = BytesIO()
    write_chrome(file, rank_tracks(folder))
    events: list[dict[str, Any]] = json.loads(file.getvalue())["traceEvents"]
    return events


class Decoded:
    """A trace of Perfetto, read by its own definitions and rules: stacks of slices by track."""

    def __init__(self, data: bytes) -> None:
        trace = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2").Trace()
        trace.ParseFromString(data)
        self.tracks: dict[int, Any] = {}
        self.slices: list[tuple[str, str, str, int, int]] = []  # rank, track, name, start, end
        self.flows: defaultdict[int, list[str]] = defaultdict(list)
        self.args: list[dict[str, Any]] = []
        names: dict[tuple[int, int], str] = {}
        stacks: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        for packet in trace.packet:
            sequence = packet.trusted_packet_sequence_id
            for entry in packet.interned_data.event_names:
                names[sequence, entry.iid] = entry.name
            if packet.HasField("track_descriptor"):
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        for packet in sorted(trace.packet, key=lambda one: one.timestamp):  # stable, as it sorts
            event = packet.track_event
            if event.type == event.TYPE_SLICE_BEGIN:
                name = names[packet.trusted_packet_sequence_id, event.name_iid]
                stacks[event.track_uuid].append((name, packet.timestamp))
                self.args.append({one.name: _value(one) for one in event.debug_annotations})
                for flow in event.flow_ids:
                    self.flows[flow].append(self.place(event.track_uuid)[0])
            elif event.type == event.TYPE_SLICE_END:
                name, start = stacks[event.track_uuid].pop()
                self.slices.append((*self.place(event.track_uuid), name, start, packet.timestamp))
        assert not any(stacks.values())

    def place(self, uuid: int) -> tuple[str, str]:
        track = self.tracks[uuid]
        return self.tracks[track.parent_uuid].name, track.name


def _value(annotation: Any) -> Any:
    return getattr(annotation, annotation.WhichOneof("value"))


def perfetto(folder: Path) -> Decoded:
    file = BytesIO()
    write_perfetto(file, rank_tracks(folder))
    return Decoded(file.getvalue())


def test_ranks_are_on_one_clock_and_arrows_join_a_collective(tmp_path: Path) -> None:
    rank = [
        make.sync("all_reduce", 10, 5, seq=1, step=0),
        make.sync("all_reduce", 20, 5, seq=2, step=0),
        LINES["step"](args=make.step(0, 0, 100)),
    ]
    shown = perfetto(write(tmp_path, rank, rank))
    later = make.ns(30)
    first = ("group world", "all_reduce", START_NS + make.ns(10), START_NS + make.ns(15))
    assert ("rank 0 (node-a)", *first) in shown.slices
    assert (
        "rank 1 (node-a)",
        "group world",
        "all_reduce",
        first[2] + later,
        first[3] + later,
    ) in shown.slices
    assert ("rank 1 (node-a)", "steps", "step 0", START_NS + later, START_NS + make.ns(130)) in (
        shown.slices
    )
    assert sorted(shown.flows.values()) == [["rank 0 (node-a)", "rank 1 (node-a)"]] * 2
    assert {name: value for name, value in shown.args[1].items() if name != "blocked_ns"} == {
        "seq": 1,
        "step": 0,
        "size_bytes": 1 << 20,
        "dtype": "float32",
    }


def test_chrome_shows_the_same_slices(tmp_path: Path) -> None:
    rank = [
        make.sync("all_reduce", 10, 5, seq=1),
        make.issued("all_gather", 12, 40, seq=2),  # overlaps, and needs a lane of its own
        LINES["step"](args=make.step(0, 0, 100)),
    ]
    folder = write(tmp_path, rank, rank)
    whole = [event for event in chrome(folder) if event["ph"] == "X"]
    in_chrome = {(e["pid"], e["name"], e["ts"] * 1000, (e["ts"] + e["dur"]) * 1000) for e in whole}
    in_perfetto = {(int(s[0].split()[1]), s[2], s[3], s[4]) for s in perfetto(folder).slices}
    assert in_chrome == in_perfetto
    assert len({(e["pid"], e["tid"]) for e in whole}) == 6


def test_arrows_of_chrome_never_point_back(tmp_path: Path) -> None:
    # On one clock they enter at 70, 35 and 65 ms, and leave at 80.
    ranks = [
        [make.sync("all_reduce", at - 30 * rank, 80 - at, seq=1)]
        for rank, at in enumerate((70, 35, 65))
    ]
    events = chrome(write(tmp_path, *ranks))
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert [(starts[one]["pid"], ends[one]["pid"]) for one in sorted(starts)] == [(0, 1), (1, 2)]
    slices = {event["pid"]: event for event in events if event["ph"] == "X"}
    for name in starts:
        inside = slices[ends[name]["pid"]]
        assert starts[name]["ts"] <= ends[name]["ts"]
        assert inside["ts"] <= ends[name]["ts"] < inside["ts"] + inside["dur"]


def test_send_and_receive_are_joined_by_sender_and_receiver(tmp_path: Path) -> None:
    there = [make.sync("send", 10, 5, seq=1, peer=1), make.sync("recv", 20, 5, seq=1, peer=1)]
    back = [make.sync("recv", 10, 5, seq=1, peer=0), make.sync("send", 20, 5, seq=1, peer=0)]
    shown = perfetto(write(tmp_path, there, back))
    assert sorted(shown.flows.values()) == [["rank 0 (node-a)", "rank 1 (node-a)"]] * 2
    arrows = {e["id"]: (e["pid"], e["name"]) for e in chrome(tmp_path) if e["ph"] == "s"}
    assert sorted(arrows.values()) == [(0, "send"), (1, "send")]


def test_what_is_unfinished_lasts_to_the_end_of_the_trace(tmp_path: Path) -> None:
    rank = [make.hanging("broadcast", 20, seq=1), LINES["step"](args=make.step(0, 0, 100))]
    shown = perfetto(write(tmp_path, rank))
    assert {one[2:4] for one in shown.slices} == {
        ("broadcast", START_NS + make.ns(20)),
        ("step 0", START_NS),
    }
    assert {one[4] for one in shown.slices} == {START_NS + make.ns(100)}
    assert any(args.get("unfinished") is True for args in shown.args)
    assert shown.flows == {}  # one rank has nobody to point to


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10))))
def test_slices_of_a_lane_are_nested_or_apart(spans: list[tuple[int, int]]) -> None:
    slices = [Slice(str(i), start, start + took, {}) for i, (start, took) in enumerate(spans)]
    slices.sort(key=lambda one: (one.start_ns, -one.end_ns))
    stacks: defaultdict[int, list[Slice]] = defaultdict(list)
    ended = []
    latest: defaultdict[int, int] = defaultdict(int)
    for edge in edges(slices):
        assert edge.time_ns >= latest[edge.lane]
        latest[edge.lane] = edge.time_ns
        if edge.begins is not None:
            stacks[edge.lane].append(edge.begins)
        else:
            ended.append(stacks[edge.lane].pop())
            assert ended[-1].end_ns == edge.time_ns
    assert sorted(ended) == sorted(slices)


class Counted(int):
    """A time that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) <= int(other)


def test_many_overlapping_slices_take_few_comparisons() -> None:
    count = 1000
    slices = [Slice("a", Counted(n), Counted(n + count), {}) for n in range(count)]
    lanes = {edge.lane for edge in edges(slices)}
    assert len(lanes) == count
    assert Counted.comparisons < 30 * count


def test_a_slice_goes_to_the_first_lane_that_is_free() -> None:
    spans = [(0, 10), (5, 15), (12, 14), (20, 30), (21, 25)]
    slices = [Slice("a", start, end, {}) for start, end in spans]
    begun = [edge.lane for edge in edges(slices) if edge.begins is not None]
    assert begun == [0, 1, 0, 0, 0]


def test_one_rank_is_read_at_a_time(tmp_path: Path) -> None:
    rank = [make.sync("all_reduce", 10, 5, seq=1)]
    ranks = rank_tracks(write(tmp_path, rank, rank))
    assert isinstance(next(ranks), RankTracks)
    (tmp_path / "trace.rank00001.json").unlink()
    with pytest.raises(DsprofError):
        next(ranks)


def test_files_without_times_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path, started_monotonic_ns=0)
    with pytest.raises(DsprofError, match="contain no times"):
        next(rank_tracks(tmp_path))
