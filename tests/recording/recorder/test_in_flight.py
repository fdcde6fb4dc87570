"""Which wait belongs to which collective is known, and nothing is kept alive for it."""

from __future__ import annotations

import gc
import weakref
from threading import get_ident
from typing import Any

import pytest

from dsprof.recording.recorder import in_flight as module
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective


class Work:
    """Stands for a c10d Work: complete when told so."""

    def __init__(self) -> None:
        self.done = False

    def is_completed(self) -> bool:
        return self.done


def issued(recorder: Recorder, work: Any, is_async: bool = True) -> Collective:
    record = Collective(
        next(recorder.ids), 1, 1, 8, 2, 100, "all_reduce", 1, "float32", is_async=is_async, step=0,
        thread=1, return_ns=110,
    )  # fmt: skip
    recorder.in_flight.works[id(work)] = (work, record)
    return record


def sent(recorder: Recorder, work: Any) -> Collective:
    """A send of this thread, which its backend calls complete only once it is waited for."""
    record = issued(recorder, work)
    record.op, record.peer, record.pending_ns, record.thread = "send", 1, 110, get_ident()
    return record


def test_a_send_that_is_dropped_is_handed_over_and_its_end_stays_unknown(
    recorder: Recorder,
) -> None:
    work = Work()
    record = sent(recorder, work)
    recorder.in_flight.poll()
    assert recorder.in_flight.pairs() == recorder.in_flight.unfinished() == [record]
    alive = weakref.ref(work)
    del work
    assert alive() is None
    assert list(recorder.outbox.records) == [record]
    assert (record.done_ns, record.waits) == (0, 0)
    assert recorder.in_flight.pairs() == recorder.in_flight.unfinished() == []


def test_no_wait_is_known_of_an_object_at_the_address_of_one_that_is_gone(
    recorder: Recorder,
) -> None:
    gone, other = Work(), Work()
    record = issued(recorder, gone)
    recorder.in_flight.lend(gone)
    assert recorder.in_flight.is_awaited(gone)
    recorder.in_flight.completed[id(other)] = (weakref.ref(gone), record)
    assert not recorder.in_flight.is_awaited(other)


def test_a_late_wait_finds_a_send_that_was_not_kept(recorder: Recorder) -> None:
    work = Work()
    record = sent(recorder, work)
    recorder.in_flight.poll()
    assert recorder.in_flight.works == {}
    recorder.in_flight.waited(work, 200, 250, finished=True)
    assert (record.waits, record.blocked_ns, record.done_ns) == (1, 50, 250)
    assert recorder.in_flight.pairs() == []


def test_sends_do_not_keep_a_poll_from_what_was_issued_after_them(recorder: Recorder) -> None:
    sends = [Work() for _ in range(module.POLLED)]
    for work in sends:
        sent(recorder, work)
    later = Work()
    record = issued(recorder, later)
    record.thread, later.done = get_ident(), True
    recorder.in_flight.poll()
    assert record.done_ns > 0


def test_a_wait_finds_its_collective(recorder: Recorder) -> None:
    work, other = Work(), Work()
    record = issued(recorder, work)
    issued(recorder, other)
    recorder.in_flight.waited(work, 200, 250, finished=True)
    assert (record.wait_ns, record.waited_ns, record.blocked_ns, record.done_ns) == (
        200, 250, 50, 250,
    )  # fmt: skip
    assert list(recorder.outbox.records) == [record]
    assert recorder.in_flight.unmatched_waits == 0


def test_a_synchronous_call_blocks_from_its_issue(recorder: Recorder) -> None:
    work = Work()
    record = issued(recorder, work)
    record.is_async, record.issue_ns = False, 120
    recorder.in_flight.waited(work, 200, 250, finished=True)
    assert (record.wait_ns, record.waited_ns, record.blocked_ns) == (200, 250, 130)


def test_a_wait_after_completion_was_seen_still_finds_it(recorder: Recorder) -> None:
    work = Work()
    record = issued(recorder, work)
    recorder.in_flight.poll()
    assert record.pending_ns > 0
    work.done = True
    recorder.in_flight.poll()
    seen_ns = record.done_ns
    assert seen_ns >= record.pending_ns
    assert not recorder.outbox.records
    recorder.in_flight.waited(work, seen_ns + 5, seen_ns + 6, finished=True)
    assert record.done_ns == seen_ns
    assert record.blocked_ns == 1
    assert list(recorder.outbox.records) == [record]


def test_a_completed_work_is_not_kept_alive(recorder: Recorder) -> None:
    work = Work()
    record = issued(recorder, work)
    work.done = True
    recorder.in_flight.poll()
    alive = weakref.ref(work)
    del work
    gc.collect()
    assert alive() is None
    assert list(recorder.outbox.records) == [record]
    assert recorder.in_flight.unfinished() == []


def test_an_unknown_wait_is_counted(recorder: Recorder) -> None:
    recorder.in_flight.waited(Work(), 1, 2 + module.NOTICEABLE_NS, finished=True)
    assert recorder.in_flight.unmatched_waits == 1
    assert not recorder.outbox.records


def test_a_second_wait_is_no_unknown_one(recorder: Recorder) -> None:
    work = Work()
    issued(recorder, work)
    recorder.in_flight.waited(work, 200, 250, finished=True)
    recorder.in_flight.waited(work, 300, 301, finished=True)
    assert recorder.in_flight.unmatched_waits == 0


def test_a_wait_that_raised_says_nothing_of_completion(recorder: Recorder) -> None:
    work = Work()
    record = issued(recorder, work)
    recorder.in_flight.waited(work, 200, 300, finished=False)
    assert record.done_ns == 0
    assert record.blocked_ns == 100


def test_the_writer_lets_go_of_what_no_hook_comes_along_for(recorder: Recorder) -> None:
    work = Work()
    record = issued(recorder, work)
    record.issue_ns = module.clock()
    work.done = True
    assert recorder.in_flight.unfinished() == [record]
    assert id(work) in recorder.in_flight.works
    record.issue_ns -= module.FOREIGN_AFTER_NS
    assert recorder.in_flight.unfinished() == [record]
    assert recorder.in_flight.works == {}
    alive = weakref.ref(work)
    del work
    assert alive() is None
    assert list(recorder.outbox.records) == [record]


def test_what_never_completes_is_given_up_when_there_is_too_much_of_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IN_FLIGHT", 2)
    works = [Work() for _ in range(5)]
    records = [issued(recorder, work) for work in works]
    assert recorder.in_flight.unfinished() == records[3:]
    assert list(recorder.outbox.records) == records[:3]
    assert recorder.in_flight.given_up == 3
    recorder.in_flight.waited(works[0], 1, 10**9, finished=True)
    assert recorder.in_flight.unmatched_waits == 1


def test_unfinished_lists_what_is_under_way(recorder: Recorder) -> None:
    record = issued(recorder, Work())
    assert recorder.in_flight.unfinished() == [record]


def test_a_work_on_its_way_to_another_thread_is_left_alone(recorder: Recorder) -> None:
    """Its caller may not hold it yet: letting go of it now would lose its identity."""
    work = Work()
    record = issued(recorder, work)
    record.thread, record.issue_ns = -1, module.clock()
    work.done = True
    recorder.in_flight.poll()
    assert id(work) in recorder.in_flight.works
    record.issue_ns -= module.FOREIGN_AFTER_NS
    recorder.in_flight.poll()
    assert id(work) not in recorder.in_flight.works


def test_a_poll_ends_after_a_few_pending_and_a_step_looks_at_all(recorder: Recorder) -> None:
    works = [Work() for _ in range(3 * module.POLLED)]
    records = [issued(recorder, work) for work in works]
    works[0].done = works[-1].done = True
    recorder.in_flight.poll()
    assert [bool(record.pending_ns) for record in records[: module.POLLED + 2]] == [
        False,
        *[True] * module.POLLED,
        False,
    ]
    assert records[0].done_ns
    assert not records[-1].done_ns
    recorder.progress.end_step("user")
    assert records[-1].done_ns


def test_a_signal_handler_that_waits_inside_a_poll_does_not_hang(recorder: Recorder) -> None:
    class Interrupted(Work):
        def is_completed(self) -> bool:
            recorder.in_flight.waited(Work(), 1, 2 + module.NOTICEABLE_NS, finished=True)
            return True

    work = Interrupted()
    issued(recorder, work)
    recorder.in_flight.poll()
    assert recorder.in_flight.unmatched_waits == 1
    assert recorder.in_flight.works == {}


def followed(recorder: Recorder, work: Any, *storages: int) -> Collective:
    """A collective that someone follows, and that writes to these storages."""
    recorder.in_flight.followers = (lambda record, outputs: None,)
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
    recorder.in_flight.poll()
    del complete
    assert not recorder.outbox.records
    assert recorder.in_flight.take_outputs(7) == [first, second]
    assert recorder.in_flight.take_outputs(7) == []
    assert recorder.in_flight.unfinished() == [other]


def test_one_wait_for_several_blocks_once(recorder: Recorder) -> None:
    records = [followed(recorder, Work()) for _ in range(2)]
    recorder.in_flight.waited_in_cpp(records, 200, 250, estimated=True)
    assert [record.blocked_ns for record in records] == [0, 50]
    assert [(r.waits, r.waited_ns, r.is_estimated) for r in records] == [(1, 250, True)] * 2
    assert list(recorder.outbox.records) == records


def test_only_what_nobody_holds_is_taken(recorder: Recorder) -> None:
    held = Work()
    waited_for_in_python = followed(recorder, held)
    waited_for_in_cpp = followed(recorder, Work())
    taken = recorder.in_flight.take_unheld(lambda record: True, with_pending=True)
    assert taken == [waited_for_in_cpp]
    recorder.in_flight.waited(held, 200, 250, finished=True)
    assert list(recorder.outbox.records) == [waited_for_in_python]


def test_what_is_pending_is_left_in_flight_if_asked(recorder: Recorder) -> None:
    in_flight, works = recorder.in_flight, [Work() for _ in range(2)]
    records = [followed(recorder, work) for work in works]
    works[1].done = True
    works.clear()
    assert in_flight.take_unheld(lambda record: True, with_pending=False) == [records[1]]
    assert in_flight.unfinished() == [records[0]]
    assert in_flight.take_unheld(lambda record: True, with_pending=True) == [records[0]]


def test_what_nobody_waits_for_is_handed_over_at_the_end_of_the_next_step(
    recorder: Recorder,
) -> None:
    work = Work()
    record = followed(recorder, work)
    work.done = True
    recorder.in_flight.poll()
    del work
    recorder.progress.end_step("user")
    assert record not in recorder.outbox.records
    assert recorder.in_flight.unfinished() == [record]
    recorder.progress.end_step("user")
    assert record in recorder.outbox.records
    assert recorder.in_flight.unfinished() == []


def test_what_is_kept_for_a_wait_in_cpp_is_bounded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsprof.recording.recorder.cpp_waits.MOST", 4)
    records = [followed(recorder, Work()) for _ in range(5)]
    for record in records:
        recorder.in_flight.cpp_waits.put(record)
    assert list(recorder.outbox.records) == records[:2]


def test_one_work_for_several_collectives_loses_none(recorder: Recorder) -> None:
    work = Work()
    work.done = True
    first, second = issued(recorder, work), None
    recorder.in_flight.lend(work)
    second = issued(recorder, work)
    recorder.in_flight.lend(work)
    del work
    gc.collect()
    assert [record.id for record in recorder.outbox.records] == [first.id, second.id]


def test_a_step_is_counted_whatever_fails_at_its_end(recorder: Recorder) -> None:
    class Broken(Work):
        def is_completed(self) -> bool:
            raise RuntimeError("the backend is gone")

    def fails(step: int) -> None:
        raise RuntimeError("a hook is broken")

    heard: list[int] = []
    for listener in (fails, heard.append):
        recorder.progress.step_listeners.append(listener)
    work = Broken()
    issued(recorder, work)
    recorder.progress.end_step("user")
    assert recorder.progress.steps == 1
    assert heard == [0]
    assert any("a hook is broken" in why for why in recorder.failures.values())
