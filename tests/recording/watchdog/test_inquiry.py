"""An inquiry of a thousand ranks, without processes: what it asks of the store."""

from __future__ import annotations

import sys

import pytest
from msgspec.structs import replace

from dsprof.analysis.hang.model import HangVerdict
from dsprof.recording.watchdog import inquiry
from dsprof.recording.watchdog.boards import StoreBoard
from dsprof.recording.watchdog.inquiry import in_words
from dsprof.recording.watchdog.judgement import judge
from dsprof.recording.watchdog.paragraph import verdict_of
from dsprof.recording.watchdog.reports import packed, unpacked
from dsprof.recording.watchdog.standings import met_in, standings_of
from dsprof.trace.dumps.hang_dump import HangDump, ProcessState, ThreadStack
from dsprof.trace.dumps.state_file import RankState, StateCall
from dsprof.trace.schema import Group, Site
from tests.factories.trace import SECOND, header

WORLD, OF_NODE, CULPRIT = 1024, 8, 777
WORLD_GROUP, PIPELINE = 1, 2
NOW = 1000 * SECOND


class CountingStore:
    """What boards use of a store, with the number and size of requests."""

    def __init__(self):
        self.values, self.requests, self.read_bytes, self.written_bytes = {}, 0, 0, 0

    def add(self, key, amount):
        self.requests += 1
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]

    def set(self, key, data):
        self.requests += 1
        self.written_bytes += len(data)
        self.values[key] = bytes(data)

    def append(self, key, text):
        self.requests += 1
        self.values[key] = self.values.get(key, b"") + text.encode()

    def check(self, keys):
        self.requests += 1
        return all(key in self.values for key in keys)

    def get(self, key):
        return self.multi_get([key])[0]

    def multi_get(self, keys):
        self.requests += 1
        found = [self.values[key] for key in keys]
        self.read_bytes += sum(map(len, found))
        return found


def call(number, *, group=WORLD_GROUP, done_ns=0):
    return StateCall(
        id=number,
        group=group,
        seq=number,
        op="all_reduce",
        dtype="bfloat16",
        nbytes=1 << 20,
        issue_ns=NOW - 60 * SECOND + number,
        site=1,
        step=5,
        thread=7,
        peer=-1,
        is_pair=False,
        done_ns=done_ns,
    )


def dump(rank):
    """A rank that waits in its 256th all-reduce; the culprit has done 255 and sleeps."""
    whole = list(range(WORLD))
    stage = [other for other in whole if other % 16 == rank % 16]
    who = header(rank=rank, world_size=WORLD, host=f"node-{rank // OF_NODE}")
    calls = [call(number, done_ns=NOW - 50 * SECOND) for number in range(1, 256)]
    state = RankState(
        header=who,
        process_start=1,
        beat_ns=NOW,
        step=5,
        phase="backward",
        calls=calls if rank == CULPRIT else [*calls, call(256)],
        passed={PIPELINE: 40},
        lost=0,
        groups={
            1: Group(id=1, key="0/world", label="world", ranks=whole, size=WORLD),
            2: Group(id=2, key=f"0/data/{rank % 16}", label="data", ranks=stage, size=len(stage)),
        },
        sites={n: Site(id=n, file="/home/user/train.py", line=n, function="f") for n in range(50)},
    )
    frames = tuple(f"/home/user/lib/part{n}.py:{n} call_{n}" for n in range(40))
    return HangDump(
        header=who,
        noticed_epoch_ns=1,
        noticed_ns=NOW,
        reason="waits",
        state=state,
        threads=[ThreadStack("MainThread", frames) for n in range(20)],
        process=ProcessState(state="S", waits_in="futex_wait", sockets=("ESTABLISHED",) * 64),
    )


@pytest.fixture(scope="module")
def nodes():
    return [
        [dump(rank) for rank in range(first, first + OF_NODE)] for first in range(0, WORLD, OF_NODE)
    ]


def test_leaders_of_a_thousand_ranks_ask_little_of_the_store(nodes):
    store = CountingStore()
    boards = [StoreBoard(lambda: store, "run") for _ in nodes]
    boards[0].ask()
    for first, (board, dumps) in enumerate(zip(boards, nodes, strict=True)):
        assert board.question() == "1"
        board.post(str(first * OF_NODE), packed(dumps))
    assert store.requests <= 1 + 3 * len(nodes)
    before, size = store.requests, store.written_bytes
    told = boards[5].read()
    assert len(told) == len(nodes)
    assert store.requests - before <= 3
    assert size < 4 << 20
    assert max(map(len, told.values())) < 1 << 16


def test_the_culprit_among_a_thousand_ranks_is_found(nodes):
    told = [packed(dumps) for dumps in nodes]
    found = {one.header.rank: one for data in told for one in unpacked(data, "run-1")}
    assert len(found) == WORLD
    assert judge(standings_of(found), 30 * SECOND).obstacles == {CULPRIT: "idle"}
    verdict = verdict_of(found, 30 * SECOND)
    assert isinstance(verdict, HangVerdict)
    assert (verdict.kind, verdict.ranks) == ("never_entered", (CULPRIT,))


def test_a_dsprof_that_was_upgraded_meanwhile_still_names_the_culprit(nodes, monkeypatch):
    """What the watchdog loads only now does not fit what the process has loaded before."""
    found = {one.header.rank: one for dumps in nodes for one in dumps}
    judgement = judge(standings_of(found), 30 * SECOND)
    monkeypatch.setitem(sys.modules, "dsprof.recording.watchdog.paragraph", None)
    text, ranks = inquiry._stuck(found, judgement, 60 * SECOND)
    said = f"stuck: rank {CULPRIT} does nothing outside collectives (the analysis failed: "
    assert text.startswith(said)
    assert ranks == (CULPRIT,)


@pytest.mark.parametrize("hosts", ["one", "many"])
def test_a_wall_clock_that_is_off_hides_no_culprit(nodes, hosts):
    """Ranks of one host share a clock that is not; those of many may be off by anything."""
    found = {}
    for one in (one for dumps in nodes for one in dumps):
        who = one.header if hosts == "many" else replace(one.header, host="node-0")
        if who.rank == CULPRIT:
            who = replace(who, started_epoch_ns=who.started_epoch_ns - 20 * SECOND)
        found[who.rank] = replace(one, header=who, state=replace(one.state, header=who))
    verdict = verdict_of(found, 30 * SECOND)
    assert isinstance(verdict, HangVerdict)
    assert (verdict.kind, verdict.ranks) == ("never_entered", (CULPRIT,))


def test_what_is_damaged_or_of_another_run_is_no_report(nodes):
    data = packed(nodes[0])
    assert unpacked(data[:50], "run-1") == unpacked(b"", "run-1") == []
    assert unpacked(data, "another") == []


def test_obstacles_in_words():
    found = {0: "joined", 1: "joined", 4: "stopped", 6: "saving", 7: "saving", 9: "unreachable"}
    assert in_words(found, " (the oldest: all_reduce 1)") == (
        "ranks 0-1 are in a collective that does not complete (the oldest: all_reduce 1); "
        "ranks 6-7 save a checkpoint; rank 4 is stopped; rank 9 does not answer"
    )


def test_ranks_of_a_group_with_a_complete_collective_have_come_to_one():
    first = dump(0)
    assert met_in({0: first}) == {*range(WORLD)}
    waits = replace(first.state, calls=[call(1)], passed={})
    assert met_in({0: replace(first, state=waits)}) == set()
    rooted = replace(call(1, done_ns=NOW), op="broadcast")
    assert met_in({0: replace(first, state=replace(waits, calls=[rooted]))}) == set()
    passed = replace(waits, passed={PIPELINE: 40})
    assert met_in({0: replace(first, state=passed)}) == {*range(0, WORLD, 16)}
