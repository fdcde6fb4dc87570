"""A run is followed as its files grow: figures are those of the whole files."""

import gzip
import os
import random
import time
from pathlib import Path
from time import monotonic

import pytest

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summarise import summarise
from dsprof.environment.machine import boot_id
from dsprof.errors import TraceError
from dsprof.live import following, watching
from dsprof.live.screen import Chosen, screen
from dsprof.live.watching import Watched
from dsprof.trace import comm_rows
from dsprof.trace.lines import LINES, Line
from dsprof.trace.run import find_run
from dsprof.trace.schema import GroupEnd, Header, MemorySample, Segment, Trailer
from tests.factories import trace as make
from tests.factories.epochs import Start, write
from tests.factories.hostile import owned_by_another
from tests.factories.trace_files import encode


def events(rank: int, steps: int = 12, late_ms: float = 3) -> list[Line]:
    """A rank of two: rank 1 computes longer, rank 0 waits for it in each step."""
    found: list[Line] = [
        LINES["header"](args=make.header(rank, 2)),
        LINES["group"](args=make.group(2)),
    ]
    for number in range(steps):
        start = 50.0 * number
        busy = 10 + number % 3 + (late_ms if rank else 0)
        whole = 30 + number % 3
        found += [
            make.sync("all_reduce", start + busy, whole - busy, seq=number, step=number),
            make.sync("all_gather", start + 40, 2 + number % 2, seq=steps + number, step=number),
            LINES["step"](args=make.step(number, start, start + 50)),
        ]
    return found


TRAILER = LINES["trailer"](args=Trailer(reason="exit"))


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    for rank in range(2):
        (tmp_path / f"trace.rank{rank:05d}.json").write_bytes(
            encode(events(rank)[:1])[:-3] + b",\n"
        )
    return Watched([tmp_path])


def grow(folder: Path, rank: int, data: bytes) -> None:
    with (folder / f"trace.rank{rank:05d}.json").open("ab") as file:
        file.write(data)


@pytest.mark.parametrize("parser", ["C", "msgspec"])
@pytest.mark.parametrize("seed", range(3))
def test_steps_are_those_of_the_whole_files_wherever_they_were_cut(
    tmp_path: Path, watched: Watched, seed: int, parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parser == "msgspec":
        monkeypatch.setattr(comm_rows, "parse", None)
    chance = random.Random(seed)
    rest = [encode([*events(rank)[1:], TRAILER])[2:] for rank in range(2)]
    while any(rest):
        rank = chance.randrange(2)
        size = chance.randrange(700)
        grow(tmp_path, rank, rest[rank][:size])
        rest[rank] = rest[rank][size:]
        watched.look()
    watched.look()
    watched.judge.close()
    whole = summarise(find_run([tmp_path]), [Steps])[Steps]
    for rank, rows in whole.ranks.items():
        assert rows.exposed_ns is not None
        steps = [watched.recent.steps[number][rank] for number in rows.number.tolist()]
        assert [one.total_ns for one in steps] == rows.total_ns.tolist()
        assert [one.exposed_ns for one in steps] == rows.exposed_ns.tolist()
    assert watched.is_over
    assert watched.totals.calls == {("all_reduce", "world"): 24, ("all_gather", "world"): 24}
    assert watched.totals.nbytes == dict.fromkeys(watched.totals.calls, 24 << 20)
    assert counted_steps(watched) == 2 * 12


def counted_steps(watched: Watched) -> int:
    return sum(sum(one.lengths.values()) for one in watched.totals.steps.values())


def test_the_newest_step_counts_once_the_rank_has_ended(tmp_path: Path, watched: Watched) -> None:
    rest = events(0)[1:]
    grow(tmp_path, 0, encode(rest)[2:-3] + b",\n")
    watched.look()
    assert counted_steps(watched) == 11  # the newest one may still change
    grow(tmp_path, 0, encode([TRAILER])[2:])
    for _ in range(2):
        watched.look()
        assert counted_steps(watched) == 12
    watched.judge.close()


def test_a_step_holds_what_ended_after_it(tmp_path: Path, watched: Watched) -> None:
    late = make.issued("all_reduce", 10, 54, wait=46, waited=54, seq=0, step=0)
    step = LINES["step"](args=make.step(0, 0, 50))
    grow(tmp_path, 0, encode([events(0)[1], step])[2:-3] + b",\n")
    watched.look()
    before = watched.recent.steps[0][0].exposed_ns
    grow(tmp_path, 0, encode([late, LINES["step"](args=make.step(1, 50, 100))])[2:])
    watched.look()
    watched.judge.close()
    assert before == 0
    assert watched.recent.steps[0][0].exposed_ns == make.ns(4)


def test_the_late_rank_is_named(tmp_path: Path, watched: Watched) -> None:
    for rank in range(2):
        grow(tmp_path, rank, encode(events(rank, 40, late_ms=12)[1:])[2:])
    watched.look()
    watched.judge.close()
    now = watched.now()
    assert (now.straggler, now.straggler_ns) == (1, make.ns(12))
    assert now.step_ns == make.ns(50)
    assert not now.is_over


def test_ranks_that_take_turns_are_no_stragglers(tmp_path: Path, watched: Watched) -> None:
    for rank in range(2):
        mine = [
            line
            for number in range(12)
            for line in events(rank, late_ms=12 if number % 2 else -12)[2 + 3 * number :][:3]
        ]
        grow(tmp_path, rank, encode([events(rank)[1], *mine])[2:])
    watched.look()
    watched.judge.close()
    assert watched.now().straggler is None


def test_a_rank_tells_what_is_in_flight(tmp_path: Path, watched: Watched) -> None:
    open_call = make.hanging("broadcast", 20, nbytes=1 << 20, step=3)
    grow(tmp_path, 0, encode([events(0)[1], open_call])[2:])
    watched.look()
    watched.judge.close()
    flying = watched.now().ranks[0].in_flight
    assert flying is not None
    assert (flying.op, flying.group, flying.nbytes) == ("broadcast", "world", 1 << 20)
    ended = make.sync("broadcast", 20, 5, step=3)
    ended.args.id = open_call.args.id
    grow(tmp_path, 0, encode([ended])[2:])
    watched.look()
    watched.judge.close()
    assert watched.now().ranks[0].in_flight is None


def test_a_call_of_a_time_beyond_all_clocks_is_left_out(tmp_path: Path, watched: Watched) -> None:
    open_call = make.hanging("broadcast", 20, step=3)
    open_call.args.issue_ns = -(10**400)
    grow(tmp_path, 0, encode([events(0)[1], open_call])[2:])
    watched.look()
    watched.judge.close()
    assert screen(watched.now(), 80, 24, Chosen())
    assert watched.now().ranks[0].in_flight is None


def test_memory_is_the_newest_sample(tmp_path: Path, watched: Watched) -> None:
    device = {"allocated_bytes.all.current": 5, "reserved_bytes.all.current": 9}
    samples = [
        LINES["memory"](args=MemorySample(at="step", time_ns=n, **known))
        for n in (1, 2)
        for known in ({"rss_bytes": n}, {"device": device})
    ]
    grow(tmp_path, 0, encode(samples)[2:])
    watched.look()
    watched.judge.close()
    rank = watched.now().ranks[0]
    assert (rank.rss_bytes, rank.allocated_bytes, rank.reserved_bytes) == (2, 5, 9)
    assert rank.stuck_bytes is None


def test_ranks_that_come_later_are_found_and_a_new_run_replaces_the_old(tmp_path: Path) -> None:
    (tmp_path / "trace.rank00000.json").write_bytes(encode(events(0)))
    watched = Watched([tmp_path])
    (tmp_path / "trace.rank00001.json").write_bytes(encode(events(1)))
    watched.look()
    assert [rank.rank for rank in watched.now().ranks] == [0, 1]
    head = Header(**{**as_dict(make.header(0, 1)), "run_key": "next", "started_epoch_ns": 1 << 61})
    (tmp_path / "trace.next.rank00000.json").write_bytes(
        encode([LINES["header"](args=head), LINES["step"](args=make.step(7, 0, 10))])
    )
    watched.judge.is_done, watched.judge.stuck = True, "of the old run"
    watched.look()
    watched.judge.close()
    now = watched.now()
    assert (now.run_key, now.world_size, now.step) == ("next", 1, 7)
    assert (watched.judge.is_done, now.stuck) == (False, "")


def test_steps_of_an_epoch_are_not_mixed_with_those_of_the_next(tmp_path: Path) -> None:
    same = (("run_key", "run"),)  # nodes that join or leave are no restart to torchelastic
    write(tmp_path, Start(0, ends=(None, None), fields=same))
    watched = Watched([tmp_path])
    watched.look()
    assert (watched.now().epoch, watched.now().step) == (1, 9)
    write(tmp_path, Start(0, ends=(None, None), fields=same), Start(60, steps=3, fields=same))
    watched.look()
    watched.judge.close()
    assert (watched.now().epoch, watched.now().step) == (2, 2)


def as_dict(header: Header) -> dict[str, object]:
    return {name: getattr(header, name) for name in header.__struct_fields__}


def test_a_rolling_recording_is_followed_through_its_segments(tmp_path: Path) -> None:
    book, *_ = lines = events(0)
    book.args.config["mode"] = "always"
    (tmp_path / "trace.rank00000.json").write_bytes(encode(lines[:2]))
    watched = Watched([tmp_path])
    watched.look()
    for number, (begin, end) in enumerate(((0, 4), (4, 8), (8, 12))):
        segment = LINES["segment"](args=Segment(number))
        tail = tmp_path / f"trace.rank00000.tail{number % 2}"
        tail.write_bytes(encode([segment, *lines[2 + 3 * begin : 2 + 3 * end]])[2:-3] + b",\n")
        watched.look()
    watched.judge.close()
    assert sorted(watched.recent.steps) == list(range(12))
    assert watched.totals.calls["all_reduce", "world"] == 12


def test_of_many_ranks_the_newest_steps_of_a_tail_are_read_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_LEAST_BYTES", 2000)
    monkeypatch.setattr(following, "_ALL_BYTES", 2000 * 3)
    book, *_ = lines = events(0)
    book.args.config["mode"] = "always"
    (tmp_path / "trace.rank00000.json").write_bytes(encode(lines[:2]))
    tail = encode([LINES["segment"](args=Segment(0)), *lines[2:]])[2:-3] + b",\n"
    (tmp_path / "trace.rank00000.tail0").write_bytes(tail)
    watched = Watched([tmp_path])
    watched.look()
    assert watched.is_behind
    watched.look()
    watched.judge.close()
    steps = sorted(watched.recent.steps)
    assert steps == list(range(steps[0], 12))
    assert 6 <= steps[0] < 11
    assert watched.totals.calls["all_reduce", "world"] < 6


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    book, *_ = lines = events(0)
    book.args.config["mode"] = "always"
    (folder := tmp_path / "run").mkdir()
    (folder / "trace.rank00000.json").write_bytes(encode(lines[:2]))
    (tmp_path / "private").write_bytes(encode(lines[2:]))
    link = folder / "trace.rank00000.tail0"
    link.symlink_to(tmp_path / "private")
    for owner, seen in (("another", False), ("self", True)):
        if owner == "another":
            owned_by_another(link)
        else:
            os.lchown(link, 0, 0)
        watched = Watched([folder])
        watched.look()
        watched.judge.close()
        assert bool(watched.recent.steps) == seen


def test_a_part_that_cannot_be_read_does_not_hide_the_rest(tmp_path: Path) -> None:
    book, *_ = lines = events(0)
    book.args.config["mode"] = "always"
    (tmp_path / "trace.rank00000.json").write_bytes(encode(lines[:2]))
    os.mkfifo(tmp_path / "trace.rank00000.tail0")
    (tmp_path / "trace.rank00000.tail1").write_bytes(encode([*lines[2:], TRAILER]))
    watched = Watched([tmp_path])
    watched.look()
    watched.judge.close()
    assert not watched.is_behind
    assert sorted(watched.recent.steps) == list(range(12))


def test_steps_without_length_have_no_trend(tmp_path: Path, watched: Watched) -> None:
    still = [LINES["step"](args=make.step(number, 0, 0)) for number in range(40)]
    grow(tmp_path, 0, encode(still)[2:])
    watched.look()
    watched.judge.close()
    assert watched.now().trend is None


def test_a_step_that_ends_before_it_begins_is_left_out(tmp_path: Path, watched: Watched) -> None:
    times = [(0, 100), (100, 50), (100, 200), (200, 300)]
    steps = [LINES["step"](args=make.step(n, *one)) for n, one in enumerate(times)]
    grow(tmp_path, 0, encode(steps)[2:])
    watched.look()
    watched.judge.close()
    assert sorted(watched.recent.steps) == [0, 2, 3]


@pytest.mark.parametrize(("steps", "trend"), [(16, 0), (37, 0.5)])
def test_a_rank_that_ends_changes_no_trend(
    tmp_path: Path, watched: Watched, steps: int, trend: float
) -> None:
    """Steps of rank 1 take 100 ms, those of rank 0 take 50 ms and change only if the trend says."""
    ends = [50 * n + 50 * trend * max(n - 20, 0) for n in range(41)]
    first = [LINES["step"](args=make.step(n, ends[n], ends[n + 1])) for n in range(40)]
    second = [LINES["step"](args=make.step(n, 100 * n, 100 * n + 100)) for n in range(steps)]
    grow(tmp_path, 0, encode(first)[2:])
    grow(tmp_path, 1, encode([*second, TRAILER])[2:])
    watched.look()
    watched.judge.close()
    assert watched.now().trend == pytest.approx(trend and 25 / 150, abs=0.001)


def test_a_run_in_which_no_step_ends_is_stalled(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(watching, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(watched.judge, "poll", lambda **_: None)
    lines = events(0)[1:]

    def seen(*more: Line) -> bool:
        now_s[0] += 6
        grow(tmp_path, 0, encode(more)[2:-3] + b",\n")
        watched.look()
        return watched.is_stalled

    beat = LINES["heartbeat"](args=make.heartbeat(1000, 1, 900))
    assert [seen(*lines[:4]), seen(*lines[4:7]), seen(beat), seen(beat)] == [False] * 3 + [True]
    assert not seen(*lines[7:10])


def test_a_run_that_goes_on_without_its_traces_is_told_from_one_that_is_over(
    tmp_path: Path, watched: Watched
) -> None:
    first, second = sorted(tmp_path.iterdir())
    data = first.read_bytes()
    first.unlink()
    watched.look()
    assert not watched.now().is_removed
    second.unlink()
    watched.look()
    assert watched.now().is_removed
    first.write_bytes(data)
    watched.look()
    assert not watched.now().is_removed
    watched.judge.close()


def test_a_new_run_is_not_stalled_by_the_time_since_the_last(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [monotonic()]
    monkeypatch.setattr(watching, "monotonic", lambda: now_s[0])
    grow(tmp_path, 0, encode(events(0)[1:])[2:])
    watched.look()
    now_s[0] += 3600
    assert watched.is_stalled
    head = make.header(0, 1, run_key="next", started_epoch_ns=1 << 61)
    (tmp_path / "trace.next.rank00000.json").write_bytes(encode([LINES["header"](args=head)])[:-3])
    watched.look()
    watched.judge.close()
    assert watched.now().run_key == "next"
    assert not watched.is_stalled


def test_a_rank_that_writes_again_after_it_seemed_gone_is_judged_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.rank00000.json"
    lines = events(0)
    lines[0].args.boot_id, lines[0].args.pid = boot_id(), 1 << 22
    path.write_bytes(encode(lines[:8])[:-3])
    os.utime(path, (time.time() - 12,) * 2)
    watched = Watched([tmp_path])
    watched.look()
    watched.judge.is_done = True
    assert (watched.now().ranks[0].state, watched.is_over) == ("gone", True)
    assert counted_steps(watched) == 1
    path.write_bytes(encode(lines)[:-3])
    watched.look()
    watched.judge.close()
    assert (watched.now().ranks[0].state, watched.is_over) == ("running", False)
    assert not watched.judge.is_done
    assert counted_steps(watched) == 10  # not the newest, and the one before the gap once


def test_a_rank_in_a_container_of_its_own_is_silent_not_gone(tmp_path: Path) -> None:
    path = tmp_path / "trace.rank00000.json"
    lines = events(0)
    head = lines[0].args
    head.boot_id, head.pid, head.pid_namespace = boot_id(), 1 << 22, 1
    path.write_bytes(encode(lines)[:-3])
    os.utime(path, (time.time() - 12,) * 2)
    watched = Watched([tmp_path])
    watched.look()
    watched.judge.close()
    assert (watched.now().ranks[0].state, watched.is_over) == ("silent", False)


def test_a_file_that_goes_keeps_what_was_known(tmp_path: Path, watched: Watched) -> None:
    grow(tmp_path, 0, encode(events(0)[1:])[2:])
    watched.look()
    (tmp_path / "trace.rank00000.json").unlink()
    watched.look()
    watched.judge.close()
    assert watched.now().step == 11


def test_what_does_not_grow_is_said(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "trace.rank00000.json.gz", "wb") as file:
        file.write(encode(events(0)))
    with pytest.raises(TraceError, match="does not grow; use dsprof report"):
        Watched([tmp_path])


def test_a_folder_without_traces_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace files"):
        Watched([tmp_path])


@pytest.mark.parametrize(("silent_s", "is_over"), [(12, True), (0, False)])
def test_a_rank_has_ended_that_is_gone_after_it_had_left_its_group(
    tmp_path: Path, silent_s: int, is_over: bool
) -> None:
    path = tmp_path / "trace.rank00000.json"
    lines = events(0)
    lines[0].args.boot_id, lines[0].args.pid = boot_id(), 1 << 22
    path.write_bytes(encode([*lines[:8], LINES["group_end"](args=GroupEnd(10**9))])[:-3] + b",\n")
    os.utime(path, (time.time() - silent_s,) * 2)
    watched = Watched([tmp_path])
    watched.look()
    watched.judge.close()
    assert (watched.now().ranks[0].state == "ended", watched.is_over) == (is_over, is_over)
