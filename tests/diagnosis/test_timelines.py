"""Steps in detail: those that findings name are among them, of the ranks worth a look."""

from __future__ import annotations

from collections.abc import Mapping, Set

from dsprof.analysis.aggregates.timelines import RANKS, Timelines
from dsprof.analysis.rank.bars import StepDetail
from dsprof.analysis.rank.drawing import draw
from dsprof.analysis.summary import RankClock
from dsprof.diagnosis.parts.steps import StepMap, StepMark
from dsprof.diagnosis.parts.timelines import Timeline
from dsprof.diagnosis.timeline_places import timeline_places
from dsprof.diagnosis.timelines import timelines
from dsprof.findings.finding import Finding, Status
from dsprof.trace.dumps.flight_dump import FlightDump, FlightEntry, FlightGroup
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import MS, disagreeing, rank_trace, span, step, summary

STEPS = 200


def trace(rank: int = 0) -> RankTrace:
    """Of steps that are all alike."""
    steps = [step(n, 100 * n, 100 * n + 90) for n in range(STEPS)]
    return rank_trace(
        rank, steps=steps, spans=[span("forward", 1, 2, step=n) for n in range(STEPS)]
    )


class Reader:
    """Reads ranks again, as `draw_steps` does, and remembers what was asked for."""

    def __init__(self, *traces: RankTrace) -> None:
        self._traces = {trace.rank: trace for trace in traces}
        self.wanted: dict[int, set[int]] = {}

    def __call__(
        self, clocks: Mapping[int, RankClock], wanted: Mapping[int, Set[int]]
    ) -> dict[int, dict[int, StepDetail]]:
        self.wanted = {rank: set(numbers) for rank, numbers in wanted.items()}
        found: dict[int, dict[int, StepDetail]] = {}
        for rank, numbers in wanted.items():
            for number, detail in draw(self._traces[rank], clocks[rank], numbers).items():
                found.setdefault(number, {})[rank] = detail
        return found


def finding(**more: object) -> Finding:
    given = {"rule": "r", "title": "t", "summary": "s", "status": Status.FAIL, "category": "steps"}
    return Finding(**(given | more))  # type: ignore[arg-type]


def late(rank: int, at: int) -> StepMap:
    mark = StepMark(kind="straggler", step=at, column=0, rank=rank, row=0, text="late")
    return StepMap(marks=[mark])


def drawn(shown: list[Timeline]) -> set[tuple[int, ...]]:
    return {tuple(sorted({bar.rank for bar in one.bars})) for one in shown}


def test_the_step_of_a_finding_is_drawn_where_the_sample_does_not_hold_it() -> None:
    both = trace(0), trace(1)
    found, read = summary(*both)[Timelines], Reader(*both)
    named, of_rank = finding(steps=(61,)), finding(ranks=(1,))
    shown = timelines(found, [named, of_rank], late(rank=1, at=65), read)
    assert read.wanted == {0: {61, 65}, 1: {61, 65}}
    assert [one.step for one in shown if one.why == "named"] == [61, 65]
    assert drawn(shown) == {(0, 1)}
    places = timeline_places([named, of_rank], shown, late(rank=1, at=65))
    assert [place.step for place in places] == [61, 65]


def test_a_step_of_a_finding_that_is_drawn_already_is_taken_rather_than_read() -> None:
    found, read = summary(trace())[Timelines], Reader(trace())
    sampled = sorted(set(found.steps) - {n for _, n in found.choose()})[4]
    shown = timelines(found, [finding(steps=(61, sampled))], StepMap(), read)
    assert [one.step for one in shown if one.why == "named"] == [sampled]
    assert read.wanted == {}


def test_a_finding_names_no_step_that_the_trace_does_not_hold_or_that_is_picked_already() -> None:
    found, read = summary(trace())[Timelines], Reader(trace())
    worst = found.choose()[0][1]
    asked = [finding(steps=(STEPS + 5,)), finding(steps=(61, worst)), finding(category="memory")]
    shown = timelines(found, asked, StepMap(), read)
    assert "named" not in {one.why for one in shown}
    assert read.wanted == {}


def test_ranks_that_did_not_foresee_the_choice_are_read_again() -> None:
    traces = [*disagreeing()]
    found, read = summary(*traces)[Timelines], Reader(*traces)
    found = found.with_details({}, found.ranks)
    lacking = Timelines(found.durations, {}, found.ranks, found.clocks)
    shown = timelines(lacking, [], StepMap(), read)
    assert [(one.why, one.step) for one in shown] == [("worst", 5), ("median", 3), ("first", 2)]
    assert read.wanted == {0: {5, 3, 2}, 1: {5, 3, 2}}


def test_of_many_ranks_those_of_findings_stragglers_the_first_and_the_last_are_drawn() -> None:
    traces = [trace(rank) for rank in range(RANKS + 14)]
    found, read = summary(*traces)[Timelines], Reader(*traces)
    shown = timelines(found, [finding(ranks=(20, 25))], late(rank=22, at=61), read)
    expected = (*range(RANKS - 4), 20, 22, 25, RANKS + 13)
    assert drawn(shown) == {expected}
    assert set(read.wanted) == {20, 22, 25, RANKS + 13}
    assert len([one for one in shown if one.why == "sample"]) > 1
    assert drawn(timelines(found, [finding(ranks=(20,))], StepMap())) == {tuple(range(RANKS))}


def dump(rank: int, *calls: tuple[str, int, int]) -> RankTrace:
    """A flight recorder whose calls are a group, a start and an end, 0 for none, in ms."""
    made = rank_trace(rank)
    entries = [
        FlightEntry(
            group=group,
            seq=number,
            op="all_reduce",
            input_sizes=((1024,),),
            output_sizes=((1024,),),
            dtype="Float",
            state="completed" if end else "scheduled",
            created_ns=start * MS,
            completed_ns=end * MS,
        )
        for number, (group, start, end) in enumerate(calls, 1)
    ]
    groups = {name: FlightGroup(name, f"label {name}", (0, 1)) for name, _, _ in calls}
    made.flight = FlightDump("nccl", knows_completion=True, groups=groups, entries=entries)
    return made


def test_a_flight_recorder_is_lanes_of_groups_with_what_is_in_flight_up_to_the_end() -> None:
    ranks = dump(0, ("0", 1000, 1002), ("7", 1005, 0)), dump(1, ("0", 1001, 1009))
    (shown,) = timelines(summary(*ranks)[Timelines], [], StepMap())
    assert (shown.why, shown.duration_ns) == ("dump", 9 * MS)
    assert [(bar.rank, bar.lane, bar.start_ns // MS, bar.end_ns // MS) for bar in shown.bars] == [
        (0, "group label 0", 0, 2), (0, "group label 7", 5, 9), (1, "group label 0", 1, 9),
    ]  # fmt: skip
    assert [bar.label for bar in shown.bars[:2]] == [
        "number 1, 1,024 elements of Float",
        "number 2, 1,024 elements of Float, in flight, scheduled",
    ]
    assert all(bar.is_communication for bar in shown.bars)
