from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.logs import Logs
from dsprof.trace.rank_log import CallKind, LoggedCalls, RankLog


def log(*shapes: str) -> RankLog:
    return RankLog(facts={"hosts of a communicator": dict.fromkeys(shapes, 1)})


@pytest.mark.parametrize(
    ("shapes", "several"),
    [((), False), (("1 of 8 ranks",), False), (("1 of 2 ranks", "2 of 16 ranks"), True)],
)
def test_hosts_are_known_by_the_largest_communicator(shapes, several):
    assert Logs({0: log(*shapes)}).has_several_hosts is several


def test_hosts_are_known_by_their_names():
    ranks = {0: log(), 1: log()}
    assert not Logs(ranks, {0: "a", 1: "a"}).has_several_hosts
    assert Logs(ranks, {0: "a", 1: "b"}).has_several_hosts


def test_calls_of_all_ranks_are_added_up():
    kinds: list[CallKind] = [("all_reduce", "", 64), ("broadcast", "", 64)]
    one, other = LoggedCalls(2, 300), LoggedCalls(5, 400)
    logs = Logs({0: RankLog(calls={kinds[0]: one}), 1: RankLog(calls=dict.fromkeys(kinds, other))})
    assert logs.calls() == {kinds[0]: LoggedCalls(7, 700), kinds[1]: other}


def test_warnings_are_counted_with_their_ranks():
    logs = Logs({0: RankLog(warnings={"a": 2, "b": 1}), 3: RankLog(warnings={"a": 3})})
    assert logs.warnings() == {"a": (0b1001, 5), "b": (0b1, 1)}
