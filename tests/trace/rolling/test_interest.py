"""Which steps of a run a rank keeps, and how long they took beside the usual step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dsprof.trace.rolling.capture import Captured
from dsprof.trace.rolling.interest import Interest
from dsprof.trace.schema import Kept

CHANGE = 1000
MS = 1_000_000


def unusual(before_ms: int, after_ms: int) -> tuple[Interest, Sequence[Kept]]:
    """Return what is kept of a run whose pace changes once, beside its first steps and samples."""
    interest = Interest()
    kept = [
        one
        for step in range(2 * CHANGE)
        for one in interest.judge(step, (before_ms if step < CHANGE else after_ms) * MS)
    ]
    return interest, [one for one in kept if one.why in ("slow", "change")]


@pytest.mark.parametrize(("before_ms", "after_ms"), [(107, 142), (107, 214), (207, 107)])
def test_a_change_of_pace_is_found_once(before_ms: int, after_ms: int) -> None:
    interest, kept = unusual(before_ms, after_ms)
    assert [one.step for one in kept if one.why == "change"] == [*range(CHANGE - 4, CHANGE + 4)]
    assert interest.usual_ns == after_ms * MS


@pytest.mark.parametrize(("before_ms", "after_ms"), [(107, 142), (207, 107)])
def test_a_kept_step_has_its_own_time(before_ms: int, after_ms: int) -> None:
    _, kept = unusual(before_ms, after_ms)
    ratio = round(after_ms / before_ms, 2)
    assert {one.step: one.times for one in kept if one.step < CHANGE} == dict.fromkeys(
        range(CHANGE - 4, CHANGE), 1.0
    )
    assert {one.times for one in kept if one.step >= CHANGE} == {ratio}


def test_steps_of_the_new_pace_are_usual_as_soon_as_it_is_found() -> None:
    _, kept = unusual(107, 142)
    assert max(one.step for one in kept) < CHANGE + 16


def test_steps_that_a_user_asked_for_are_theirs_although_an_alarm_asked_before() -> None:
    interest = Interest()
    alarm = Captured("behind-1", 110, 32, "alarm", "step 100 of rank 1")
    asked = Captured("abc", 125, 100, "capture", "dsprof capture")
    last = Captured("memory-1", 220, 32, "alarm", "step 210 of rank 1")
    for wanted in (alarm, asked, last):
        interest.capture(wanted)
    kept = {one.step: one for step in range(260) for one in interest.judge(step, MS)}
    assert {kept[step].why for step in asked.range} == {"capture"}
    assert kept[124].cause == alarm.cause
    assert kept[225].cause == last.cause


def test_a_step_that_raises_an_alarm_outlasts_usual_steps_around_others() -> None:
    """Each rank learns of few alarms, but of all of its steps; ranks evict each for itself."""
    slow, slightly = Kept(5, "slow", 12.0), Kept(6, "slow", 1.5)
    around = [Kept(7, "change", 1.0), Kept(8, "alarm", 1.0)]
    order = sorted([slow, *around, slightly, Kept(9, "capture", 1.0)], key=Interest().worth)
    assert [one.step for one in order] == [6, 8, 7, 5, 9]
