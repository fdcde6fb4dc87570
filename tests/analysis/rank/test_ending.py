"""When a rank that was killed had left its process group in good order; times in ms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dsprof.analysis.rank.ending import Left, group_end
from dsprof.trace.dumps.state_file import RankState, StateCall
from dsprof.trace.schema import GroupEnd, Trailer
from tests.factories.trace import failing, hanging, header, issued, ns, rank_trace, span, step, sync

DONE = sync("all_reduce", 100, 10, seq=1)
STARTED_NS = header().started_monotonic_ns


def state(left: float = 0, *calls: StateCall) -> RankState:
    kept = RankState(header(), 1, STARTED_NS + ns(500), 3, "", [*calls], {}, 0, {}, {})
    kept.left_ns = STARTED_NS + ns(left) if left else 0
    return kept


def call(at: float, done_ns: int = 1) -> StateCall:
    issue_ns = STARTED_NS + ns(at)
    return StateCall(9, 1, 2, "all_reduce", "", 4, issue_ns, 1, 0, 1, -1, False, done_ns)


def killed(*events: Any, **fields: Any) -> Left | None:
    return group_end(rank_trace(comm=[DONE, *events], **{"trailer": None, **fields}))


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({}, None),
        ({"group_ends": [GroupEnd(ns(200))]}, Left(ns(200), 0)),
        ({"state": state(200)}, Left(ns(200), ns(90))),
        ({"group_ends": [GroupEnd(ns(200))], "state": state(200)}, Left(ns(200), 0)),
        ({"state": state()}, None),
        ({"group_ends": [GroupEnd(ns(200)), GroupEnd()], "state": state()}, None),
        ({"group_ends": [GroupEnd(ns(200)), GroupEnd()]}, None),
        ({"group_ends": [GroupEnd(ns(200))], "trailer": Trailer("exit")}, None),
    ],
    ids=[
        "not", "written", "kept", "both", "kept that not", "begun again", "begun again, without a "
        "state", "closed",
    ],
)  # fmt: skip
def test_the_trace_or_the_live_state_tells_it(fields: dict[str, Any], left: Left | None) -> None:
    assert killed(**fields) == left


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": [step(0, 0, 250)]},
        {"spans": [span("forward", 210, 220)]},
        {"state": state(200, call(210))},
        {"state": state(200, call(190, -STARTED_NS - ns(195)))},
        {"state": state(200, call(190, 0))},
    ],
    ids=["a step", "a span", "a call", "a wait had failed", "a call was in flight"],
)
def test_a_rank_that_went_on_or_had_failed_did_not_end_so(fields: dict[str, Any]) -> None:
    given = {"group_ends": [GroupEnd(ns(200))], **fields}
    assert killed(**given) is None


@pytest.mark.parametrize(
    ("last", "is_in_order"),
    [
        (sync("all_reduce", 210, 5, seq=2), False),
        (failing("all_reduce", 190, 5, seq=2), False),
        (hanging("all_reduce", 190, seq=2), False),
        (hanging("send", 190, seq=2), True),  # whether it is complete is not seen
        (issued("all_reduce", 190, 205, seq=2), True),
    ],
    ids=["a later one", "failed", "in flight", "a send", "ended late"],
)
def test_the_last_collective_shows_whether_the_end_was_in_order(
    last: Any, is_in_order: bool
) -> None:
    assert (killed(last, group_ends=[GroupEnd(ns(200))]) is not None) == is_in_order


def test_what_was_in_order_before_it_is_no_reason_against_it() -> None:
    given = {"steps": [step(0, 0, 150)], "spans": [span("main", 0, 300)]}
    left = killed(group_ends=[GroupEnd(ns(200))], state=state(200, call(190)), **given)
    assert left == Left(ns(200), 0)


def test_an_older_state_has_no_word_of_it() -> None:
    fields = msgspec.structs.asdict(state(200))
    del fields["left_ns"]
    assert killed(state=RankState(**fields)) is None
