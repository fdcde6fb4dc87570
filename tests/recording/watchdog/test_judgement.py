"""Whether ranks that wait are stuck or only slow, without processes and without a clock."""

import pytest

from dsprof.recording.watchdog.judgement import Standing, Wait, judge

LIMIT_NS = 60


def waiting(*, seq=4, key="world", ranks=4, age_ns=100, **fields):
    wait = Wait(key, key, tuple(range(ranks)), seq, age_ns)
    return Standing(waits=(wait,), **{"entered": {key: seq}, "reached": {key: seq}} | fields)


def run(other, ranks=4):
    """Ranks that wait in the fourth all-reduce, and one other."""
    found = {rank: waiting(ranks=ranks) for rank in range(ranks) if rank != 1}
    return found if other is None else found | {1: other}


@pytest.mark.parametrize("condition", ["idle", "stopped", "gone", "locked"])
def test_a_rank_that_provably_does_not_come_makes_a_run_stuck(condition):
    found = judge(run(Standing(entered={"world": 3}, condition=condition)), LIMIT_NS)

    assert found.is_stuck
    assert found.obstacles == {1: condition}


@pytest.mark.parametrize(
    "at_work",
    [
        "a checkpoint",
        "evaluation on rank 0 in a barrier",
        "compilation of the first step",
        "a straggler of ten times",
    ],
)
def test_a_rank_that_computes_reads_or_writes_is_slow(at_work):
    found = judge(run(Standing(entered={"world": 3}, condition="active")), LIMIT_NS)

    assert not found.is_stuck
    assert found.obstacles == {1: "active"}


def test_a_rank_in_a_debugger_is_slow():
    assert not judge(run(Standing(entered={"world": 3}, condition="debugged")), LIMIT_NS).is_stuck
    assert not judge(run(Standing(entered={"world": 3}, condition="saving")), LIMIT_NS).is_stuck


def test_ranks_that_wait_no_longer_than_the_limit_are_asked_nothing():
    short = {rank: waiting(age_ns=LIMIT_NS // 3) for rank in range(4)}

    assert judge(short, LIMIT_NS).obstacles == {}


def test_a_rank_that_does_not_answer_is_named():
    found = judge(run(None), LIMIT_NS)

    assert found.is_stuck
    assert found.obstacles == {1: "unreachable"}


def test_a_rank_that_may_not_have_come_to_a_collective_yet_makes_no_run_stuck():
    """It records from its first one on: until then it cannot answer, whatever it does."""
    found = judge(run(None), LIMIT_NS, met={0, 2, 3})

    assert not found.is_stuck
    assert found.obstacles == {1: "unrecorded"}
    assert judge(run(None), LIMIT_NS, met={0, 1}).is_stuck


def test_a_call_that_all_have_joined_long_ago_is_stuck():
    found = judge(run(waiting()), LIMIT_NS)

    assert found.is_stuck
    assert {*found.obstacles.values()} == {"joined"}


def test_a_call_that_the_last_one_has_just_joined_goes_on():
    assert not judge(run(waiting(age_ns=5)), LIMIT_NS).is_stuck


@pytest.mark.parametrize("condition", ["gone", "stopped"])
def test_a_call_that_a_rank_issued_before_its_end_is_not_reached_by_its_device(condition):
    ended = Standing(entered={"world": 4}, reached={"world": 3}, condition=condition)
    assert judge(run(ended), LIMIT_NS).obstacles == {1: condition}
    reached = Standing(entered={"world": 4}, reached={"world": 4}, condition="idle")
    assert {*judge(run(reached), LIMIT_NS).obstacles.values()} == {"joined"}


def test_a_send_that_the_receiver_has_just_joined_goes_on():
    def of_pair(own, other, peer, age_ns):
        wait = Wait(other, own, (peer,), 1, age_ns)
        return Standing(waits=(wait,), entered={own: 1}, reached={own: 1})

    def judged(age_ns):
        receiver = of_pair("recv", "send", 0, age_ns)
        return judge({0: of_pair("send", "recv", 1, 90), 1: receiver}, LIMIT_NS).obstacles

    assert judged(0) == {0: "joining"}
    assert judged(90) == {0: "joined", 1: "joined"}


def test_who_waits_elsewhere_for_a_rank_that_computes_is_slow():
    elsewhere = Standing(
        waits=(Wait("pair", "pair", (1, 3), 2, 90),),
        entered={"world": 3, "pair": 2},
        condition="idle",
    )
    standings = run(elsewhere) | {3: Standing(entered={"world": 3}, condition="active")}

    found = judge(standings, LIMIT_NS)

    assert not found.is_stuck
    assert found.obstacles == {3: "active"}


def test_ranks_that_wait_for_each_other_are_deadlocked():
    def waits_in(here, there):
        return Standing(waits=(Wait(here, here, (0, 1), 1, 90),), entered={here: 1, there: 0})

    found = judge({0: waits_in("a", "b"), 1: waits_in("b", "a")}, LIMIT_NS)

    assert found.is_stuck
    assert found.obstacles == {0: "deadlock", 1: "deadlock"}


def test_all_ranks_stopped_together_have_nobody_who_asks():
    stopped = {rank: waiting(condition="stopped", age_ns=LIMIT_NS // 4) for rank in range(4)}

    assert not judge(stopped, LIMIT_NS).is_stuck


def test_who_does_not_come_to_where_others_wait_at_the_store_is_named():
    at_store = Standing(at_store_ns=90)
    standings = {0: at_store, 1: Standing(), 2: at_store}

    found = judge(standings, LIMIT_NS)

    assert found.is_stuck
    assert found.obstacles == {1: "idle"}
    assert not judge(standings | {1: Standing(condition="active")}, LIMIT_NS).is_stuck


def test_ranks_that_all_wait_at_a_store_that_answers_are_slow():
    everyone = dict.fromkeys(range(4), Standing(at_store_ns=90))

    assert not judge(everyone, LIMIT_NS).is_stuck
    for others in (everyone, {}):
        found = judge(others | {1: Standing(condition="storeless")}, LIMIT_NS)
        assert found.obstacles[1] == "storeless"
