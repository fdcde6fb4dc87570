"""Memory snapshots, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsprof.analysis.summarise import summarise
from dsprof.trace.dumps.memory_snapshot import MemorySnapshot
from dsprof.trace.readers import pickles
from dsprof.trace.readers.memory_snapshot import READER
from dsprof.trace.run import find_run
from tests.factories import snapshot as make
from tests.factories.snapshot import MIB, event, segment
from tests.factories.trace_files import read


def laid_out(tmp_path: Path, *args: Any, **fields: Any) -> MemorySnapshot:
    snapshot = read(make.write(tmp_path / "rank0.pickle", *args, **fields)).snapshot
    assert snapshot is not None
    return snapshot


def test_a_snapshot_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    def load(*given: Any) -> Any:
        parsed.append(given[1])
        return pickles.load_plain(*given)

    monkeypatch.setattr("dsprof.trace.readers.memory_snapshot.load_plain", load)
    path = make.write(tmp_path / "rank0.pickle", [segment(8)])
    assert READER.read_headers(path)
    for _ in range(2):
        (trace,) = READER.read_traces(path)
        assert trace.snapshot is not None
    assert parsed == [str(path)]
    make.write(path, [segment(8), segment(9)])
    (trace,) = READER.read_traces(path)
    assert trace.snapshot is not None
    assert trace.snapshot.segments == 2


def test_a_snapshot_that_was_read_with_others_is_later_read_alone(tmp_path: Path) -> None:
    paths = [make.write(tmp_path / f"rank{n}.pickle", [segment(8)]) for n in range(2)]
    summarise(find_run(paths))
    assert find_run(paths[:1]).headers[0].world_size == 1


def mib(nbytes: int) -> float:
    return nbytes / MIB


def test_whole_free_segments_are_cache_and_holes_in_others_are_stuck(tmp_path: Path) -> None:
    one = laid_out(tmp_path, [segment(10, -6, 4), segment(-20), segment(8)])
    assert mib(one.reserved_bytes) == 48
    assert mib(one.active_bytes) == 22
    assert mib(one.cached_bytes) == 20
    assert mib(one.stuck_bytes) == 6
    assert mib(one.largest_free_bytes) == 20
    assert (one.segments, one.partly_used) == (3, 1)


def test_free_pages_of_expandable_segments_are_given_back(tmp_path: Path) -> None:
    one = laid_out(tmp_path, [segment(10, -50, 4, -6, is_expandable=True)])
    assert (mib(one.cached_bytes), mib(one.stuck_bytes)) == (40, 16)
    assert mib(one.expandable_bytes) == 70


def test_private_pools_stand_apart(tmp_path: Path) -> None:
    one = laid_out(tmp_path, [segment(8), segment(2, segment_pool_id=(0, 3))])
    assert mib(one.private_bytes) == 2


def test_of_two_devices_the_fuller_one_is_read(tmp_path: Path) -> None:
    trace = read(make.write(tmp_path / "rank0.pickle", [segment(8), segment(9, device=1)]))
    assert trace.snapshot is not None
    assert trace.snapshot.device == 1
    assert "2 devices: device 1 is judged, 8.00 MiB reserved on others" in trace.notes[0].text


def test_the_peak_is_counted_back_from_the_end(tmp_path: Path) -> None:
    history = [
        event("alloc", 1, 5, line=11),
        event("alloc", 2, 30, line=12),
        event("alloc", 3, 2, line=11),
        event("free_requested", 2, 30),
        event("free_completed", 2, 30),
        event("free_requested", 1, 5),
    ]
    peak = laid_out(tmp_path, [segment(2, 40)], history).peak
    assert peak is not None
    assert mib(peak.requested_bytes) == 77
    held = {caller: mib(nbytes) for caller, nbytes in peak.holders}
    assert held == {"/home/me/model.py:12 forward": 30, "/home/me/model.py:11 forward": 7}
    assert mib(peak.before_bytes) == 40


def test_without_a_history_there_is_no_peak(tmp_path: Path) -> None:
    assert laid_out(tmp_path, [segment(2)]).peak is None


def test_a_request_that_failed_is_fragmentation_if_it_would_have_fit(tmp_path: Path) -> None:
    for device_free, expected in ((6, True), (2, False)):
        history = [event("oom", 0, 16, device_free=device_free * MIB)]
        one = laid_out(tmp_path, [segment(10, -10)], history)
        assert one.was_fragmentation is expected


def test_the_rank_is_in_the_name_or_said_to_be_unknown(tmp_path: Path) -> None:
    assert read(make.write(tmp_path / "mem_rank3.pickle", [segment(1)])).rank == 3
    trace = read(make.write(tmp_path / "model_1024.pickle", [segment(1)]))
    assert trace.rank == 0
    assert "does not name its rank" in trace.notes[0].text


def test_of_snapshots_that_name_no_rank_none_is_of_an_earlier_run(tmp_path: Path) -> None:
    for number in range(2):
        make.write(tmp_path / f"snapshot_{number}.pickle", [segment(1 + number)])
    [stranger] = find_run([tmp_path]).strangers
    assert "names no rank, so rank 0 is assumed" in stranger.reason


def stack(*places: tuple[str, int]) -> list[dict[str, Any]]:
    """Frames as torch writes them: the innermost first, those of C++ between them."""
    frames = [{"name": "f", "filename": file, "line": line} for file, line in reversed(places)]
    return [{"name": "at::empty", "filename": "??", "line": 0}, *frames]


def test_memory_in_use_is_summed_by_call_stack(tmp_path: Path) -> None:
    module = ("C:\\x\\site-packages\\torch\\nn\\modules\\module.py", 1790)
    one = segment(10, 6, -4, 3)
    blocks = one["blocks"]
    blocks[0]["frames"] = stack(("/me/main.py", 1), module, ("/me/model.py", 7), module)
    blocks[1]["frames"] = stack(("/me/main.py", 1))
    blocks[2]["frames"] = stack(("/me/main.py", 9))  # free
    found = laid_out(tmp_path, [one, segment(1, frames=[])]).stacks
    assert [(calls, mib(nbytes)) for calls, nbytes in found] == [
        (
            (
                "/me/main.py:1 f",
                "/me/model.py:7 f",
                "C:/x/site-packages/torch/nn/modules/module.py:1790 f",
            ),
            10,
        ),
        (("/me/main.py:1 f",), 6),
        ((), 4),
    ]


def test_without_any_call_stack_none_is_made_up(tmp_path: Path) -> None:
    assert laid_out(tmp_path, [segment(10, -6)]).stacks == ()


def test_of_many_call_stacks_the_largest_are_kept_and_the_rest_is_summed(tmp_path: Path) -> None:
    one = segment(*range(1, 301))
    for line, block in enumerate(one["blocks"]):
        block["frames"] = stack(("/me/main.py", line))
    found = laid_out(tmp_path, [one]).stacks
    assert len(found) == 201
    assert found[-1] == (("other call stacks",), sum(range(1, 101)) * MIB)
    assert sum(nbytes for _, nbytes in found) == one["active_size"]
