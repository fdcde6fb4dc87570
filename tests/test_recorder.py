"""The recorder knows which wait belongs to which collective, and never holds more than it may."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from dsprof import recorder as module
from dsprof.events import Collective, Context, Group, Phase, Scope, Step
from dsprof.recorder import Recorder

GROUP = Group(1, "key", "world", "0", [0, 1], 2, "gloo", 1)


class Work:
    """Stands for a c10d Work: complete when told so."""

    def __init__(self) -> None:
        self.done = False

    def is_completed(self) -> bool:
        return self.done


@pytest.fixture
def recorder() -> Recorder:
    recorder = Recorder(lambda: True)
    assert recorder.arm()
    return recorder


def issued(recorder: Recorder, work: Any, is_async: bool = True) -> Collective:
    record = Collective(
        next(recorder.ids), "all_reduce", GROUP, 1, 8, 2, 1, "float32", is_async, None, -1, 0,
        Scope(0, 0, ""), Context(), 1, 100, 110,
    )  # fmt: skip
    recorder.in_flight[id(work)] = (work, record)
    return record


def test_a_wait_finds_its_collective(recorder: Recorder) -> None:
    work, other = Work(), Work()
    record = issued(recorder, work)
    issued(recorder, other)
    recorder.waited(work, 200, 250, finished=True)
    assert (record.wait_ns, record.waited_ns, record.blocked_ns, record.done_ns) == (
        200, 250, 50, 250,
    )  # fmt: skip
    assert list(recorder.buffer) == [record]
    assert recorder.unmatched_waits == 0


def test_a_wait_after_completion_was_seen_still_finds_it(recorder: Recorder) -> None:
    work = Work()
    record = issued(recorder, work)
    recorder.poll()
    assert record.pending_ns > 0
    work.done = True
    recorder.poll()
    seen_ns = record.done_ns
    assert seen_ns >= record.pending_ns
    assert not recorder.buffer
    recorder.waited(work, seen_ns + 5, seen_ns + 6, finished=True)
    assert record.done_ns == seen_ns
    assert record.blocked_ns == 1
    assert list(recorder.buffer) == [record]


def test_a_completed_work_is_not_kept_alive(recorder: Recorder) -> None:
    work = Work()
    record = issued(recorder, work)
    work.done = True
    recorder.poll()
    alive = weakref.ref(work)
    del work
    gc.collect()
    assert alive() is None
    assert list(recorder.buffer) == [record]
    assert recorder.unfinished() == []


def test_an_unknown_wait_is_counted(recorder: Recorder) -> None:
    recorder.waited(Work(), 1, 2 + module.NOTICEABLE_NS, finished=True)
    assert recorder.unmatched_waits == 1
    assert not recorder.buffer


def test_a_second_wait_is_no_unknown_one(recorder: Recorder) -> None:
    work = Work()
    issued(recorder, work)
    recorder.waited(work, 200, 250, finished=True)
    recorder.waited(work, 300, 301, finished=True)
    assert recorder.unmatched_waits == 0


def test_a_wait_that_raised_says_nothing_of_completion(recorder: Recorder) -> None:
    work = Work()
    record = issued(recorder, work)
    recorder.waited(work, 200, 300, finished=False)
    assert record.done_ns == 0
    assert record.blocked_ns == 100


def test_the_writer_lets_go_of_what_no_hook_comes_along_for(recorder: Recorder) -> None:
    work = Work()
    record = issued(recorder, work)
    record.issue_ns = module.clock()
    work.done = True
    assert recorder.unfinished() == [record]
    assert id(work) in recorder.in_flight
    record.issue_ns -= module.FOREIGN_AFTER_NS
    assert recorder.unfinished() == [record]
    assert recorder.in_flight == {}
    alive = weakref.ref(work)
    del work
    assert alive() is None
    assert list(recorder.buffer) == [record]


def test_what_never_completes_is_given_up_when_there_is_too_much_of_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IN_FLIGHT", 2)
    works = [Work() for _ in range(5)]
    records = [issued(recorder, work) for work in works]
    assert recorder.unfinished() == records[3:]
    assert list(recorder.buffer) == records[:3]
    assert recorder.given_up == 3
    recorder.waited(works[0], 1, 10**9, finished=True)
    assert recorder.unmatched_waits == 1


def test_unfinished_lists_what_is_under_way(recorder: Recorder) -> None:
    record = issued(recorder, Work())
    assert recorder.unfinished() == [record]


def test_a_work_on_its_way_to_another_thread_is_left_alone(recorder: Recorder) -> None:
    """Its caller may not hold it yet: letting go of it now would lose its identity."""
    work = Work()
    record = issued(recorder, work)
    record.thread, record.issue_ns = -1, module.clock()
    work.done = True
    recorder.poll()
    assert id(work) in recorder.in_flight
    record.issue_ns -= module.FOREIGN_AFTER_NS
    recorder.poll()
    assert id(work) not in recorder.in_flight


def test_a_poll_ends_after_a_few_pending_and_a_step_looks_at_all(recorder: Recorder) -> None:
    works = [Work() for _ in range(3 * module.POLLED)]
    records = [issued(recorder, work) for work in works]
    works[0].done = works[-1].done = True
    recorder.poll()
    assert [bool(record.pending_ns) for record in records[: module.POLLED + 2]] == [
        False,
        *[True] * module.POLLED,
        False,
    ]
    assert records[0].done_ns
    assert not records[-1].done_ns
    recorder.end_step("user")
    assert records[-1].done_ns


def test_a_signal_handler_that_waits_inside_a_poll_does_not_hang(recorder: Recorder) -> None:
    class Interrupted(Work):
        def is_completed(self) -> bool:
            recorder.waited(Work(), 1, 2 + module.NOTICEABLE_NS, finished=True)
            return True

    work = Interrupted()
    issued(recorder, work)
    recorder.poll()
    assert recorder.unmatched_waits == 1
    assert recorder.in_flight == {}


def test_a_full_buffer_drops_and_counts(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUFFER_RECORDS", 1)
    for _ in range(3):
        recorder.add(Phase("forward", Scope(0, 0, ""), 0, 1, 1))
    assert len(recorder.buffer) == 1
    assert recorder.dropped == 2


def test_phases_and_steps(recorder: Recorder) -> None:
    entered = recorder.enter("forward")
    assert recorder.scope == Scope(0, 0, "forward")
    recorder.leave(entered)
    recorder.end_micro_step()
    assert recorder.scope == Scope(0, 1, "")
    recorder.leave(recorder.enter("step"))
    recorder.end_step("deepspeed")
    assert recorder.scope == Scope(1, 0, "")
    phases = [r for r in recorder.buffer if isinstance(r, Phase)]
    steps = [r for r in recorder.buffer if isinstance(r, Step)]
    assert [(p.name, p.scope.step, p.scope.micro_step) for p in phases] == [
        ("forward", 0, 0),
        ("step", 0, 1),
    ]
    assert [(s.step, s.micro_steps, s.source) for s in steps] == [(0, 2, "deepspeed")]


def test_phases_that_do_not_end_in_turn_leave_none_open(recorder: Recorder) -> None:
    first, second = recorder.enter("backward", engine=0), recorder.enter("backward", engine=1)
    recorder.leave(first)
    assert (recorder.scope.phase, recorder.scope.engine) == ("backward", 1)
    recorder.leave(second)
    assert (recorder.scope.phase, recorder.scope.engine) == ("", -1)
    assert [r.scope.engine for r in recorder.buffer if isinstance(r, Phase)] == [0, 1]


def test_the_best_source_of_steps_wins(recorder: Recorder) -> None:
    for source in ("optimizer", "deepspeed", "optimizer", "deepspeed", "user", "deepspeed", "user"):
        recorder.end_step(source)
    steps = [r for r in recorder.buffer if isinstance(r, Step)]
    assert [step.source for step in steps] == ["optimizer", "deepspeed", "user"]
    assert [step.step for step in steps] == [0, 1, 2]


def test_steps_follow_each_other_without_a_gap(recorder: Recorder) -> None:
    for _ in range(3):
        recorder.end_step("user")
    steps = [r for r in recorder.buffer if isinstance(r, Step)]
    assert [s.start_ns for s in steps[1:]] == [s.end_ns for s in steps[:-1]]


def test_arming_fails_for_good_when_the_session_does() -> None:
    def broken() -> bool:
        raise OSError("no such thing")

    recorder = Recorder(broken)
    assert not recorder.arm()
    assert recorder.stopped
    assert recorder.failures == {"session": "OSError: no such thing"}


def test_a_stopped_recorder_does_not_arm_again(recorder: Recorder) -> None:
    recorder.stop()
    assert not recorder.arm()


def followed(recorder: Recorder, work: Any, *storages: int) -> Collective:
    """A collective that someone follows, and that writes to these storages."""
    recorder.followers = (lambda record, outputs: None,)
    record = issued(recorder, work)
    record.outputs = storages
    return record


def test_a_wait_in_cpp_finds_pending_and_complete_collectives_by_storage(
    recorder: Recorder,
) -> None:
    complete, pending = Work(), Work()
    first, second = followed(recorder, complete, 7), followed(recorder, pending, 7, 8)
    other = followed(recorder, Work(), 9)
    complete.done = True
    recorder.poll()
    del complete
    assert not recorder.buffer
    assert recorder.take_outputs(7) == [first, second]
    assert recorder.take_outputs(7) == []
    assert recorder.unfinished() == [other]


def test_one_wait_for_several_blocks_once(recorder: Recorder) -> None:
    records = [followed(recorder, Work()) for _ in range(2)]
    recorder.waited_in_cpp(records, 200, 250, estimated=True)
    assert [record.blocked_ns for record in records] == [0, 50]
    assert [(r.waits, r.waited_ns, r.is_estimated) for r in records] == [(1, 250, True)] * 2
    assert list(recorder.buffer) == records


def test_only_what_nobody_holds_is_taken(recorder: Recorder) -> None:
    held = Work()
    waited_for_in_python = followed(recorder, held)
    waited_for_in_cpp = followed(recorder, Work())
    assert recorder.take_unheld(lambda record: True) == [waited_for_in_cpp]
    recorder.waited(held, 200, 250, finished=True)
    assert list(recorder.buffer) == [waited_for_in_python]


def test_what_nobody_waits_for_is_handed_over_at_the_end_of_the_next_step(
    recorder: Recorder,
) -> None:
    work = Work()
    record = followed(recorder, work)
    work.done = True
    recorder.poll()
    del work
    recorder.end_step("user")
    assert record not in recorder.buffer
    assert recorder.unfinished() == [record]
    recorder.end_step("user")
    assert record in recorder.buffer
    assert recorder.unfinished() == []


def test_what_is_kept_for_a_wait_in_cpp_is_bounded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsprof.unheld.MOST", 4)
    records = [followed(recorder, Work()) for _ in range(5)]
    for record in records:
        recorder.unheld.put(record)
    assert list(recorder.buffer) == records[:2]


def test_a_step_is_counted_whatever_fails_at_its_end(recorder: Recorder) -> None:
    class Broken(Work):
        def is_completed(self) -> bool:
            raise RuntimeError("the backend is gone")

    def fails(step: int) -> None:
        raise RuntimeError("a hook is broken")

    heard: list[int] = []
    recorder.step_listeners += [fails, heard.append]
    work = Broken()
    issued(recorder, work)
    recorder.end_step("user")
    assert recorder.steps == 1
    assert heard == [0]
    assert any("a hook is broken" in why for why in recorder.failures.values())


def test_one_work_for_several_collectives_loses_none(recorder: Recorder) -> None:
    work = Work()
    work.done = True
    first, second = issued(recorder, work), None
    recorder.lend(work)
    second = issued(recorder, work)
    recorder.lend(work)
    del work
    gc.collect()
    assert [record.id for record in recorder.buffer] == [first.id, second.id]
