"""Which of DDP's collectives a backward pass has waited for, by what autograd calls at its ends."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

import pytest

from dsprof.hooks.torch import ddp_wait
from dsprof.hooks.torch.ddp_wait import DdpWaitHook
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective
from dsprof.trace.scope import clock


class Work:
    """Stands for a Work that only C++ and the recorder hold."""

    done = False

    def is_completed(self) -> bool:
        return self.done


class Backward:
    """Backward passes, one inside of the other, of a model in DDP."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recorder = Recorder(lambda: True)
        assert self.recorder.arm()
        self.hook = DdpWaitHook(self.recorder)
        target = DdpWaitHook.targets[0]
        self.works: dict[int, Work] = {}
        self._task, self._queued = 0, dict[int, list[Callable[[], None]]]()
        self._number = 100
        monkeypatch.setattr(ddp_wait, "_task", lambda: self._task)
        monkeypatch.setattr(ddp_wait, "_is_inner", lambda: self._task != 1)
        monkeypatch.setattr(self.hook, "_queue", self._queue)
        self.hook.wrap(target, lambda: None)()  # forward

    def _queue(self, callback: Callable[[], None]) -> None:
        self._queued.setdefault(self._task, []).append(callback)

    def reduce(self, task: int) -> Collective:
        """Issue an all-reduce in a pass."""
        self._task, self._number, work = task, self._number + 1, Work()
        given: dict[str, Any] = {"is_async": True, "thread": get_ident(), "pending_ns": 1}
        record = Collective(self._number, 1, 1, 8, 2, clock(), "all_reduce", **given)
        self.works[record.id] = work
        self.recorder.in_flight.works[id(work)] = (work, record)
        self.recorder.in_flight.tell_followers(record, ())
        return record

    def end(self, task: int, *complete: Collective) -> None:
        """End a pass; by then these are complete."""
        self._task = task
        for record in complete:
            self.works.pop(record.id).done = True
        queued = self._queued.pop(task)
        for callback in queued:  # one may queue the next
            callback()
        for callback in self._queued.pop(task, []):
            callback()


def test_what_is_in_flight_when_an_inner_backward_ends_is_left_to_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backward = Backward(monkeypatch)
    first = backward.reduce(task=2)
    backward.end(2)
    assert (first.done_ns, first.waits) == (0, 0)
    assert backward.recorder.in_flight.unfinished() == [first]
    last = backward.reduce(task=1)
    backward.end(1, first, last)
    assert list(backward.recorder.outbox.records) == [first, last]
    assert [(record.waits, record.done_ns > 0) for record in (first, last)] == [(1, True)] * 2
    assert (first.blocked_ns, last.blocked_ns > 0) == (0, True)
    assert backward.recorder.failures == {}


def test_the_reducer_has_waited_for_what_calls_itself_complete_a_moment_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backward = Backward(monkeypatch)
    record = backward.reduce(task=1)
    backward.works.clear()  # the reducer has let it go
    backward.end(1)
    assert list(backward.recorder.outbox.records) == [record]
    assert (record.waits, record.done_ns > 0, record.blocked_ns > 0) == (1, True, True)


@pytest.mark.parametrize("name", ["_verify_params_across_processes", "_broadcast_coalesced"])
def test_what_a_new_model_sends_in_cpp_is_waited_for_as_it_returns(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backward = Backward(monkeypatch)
    (target,) = (target for target in DdpWaitHook.targets if target.name == name)
    sent: list[Collective] = []

    def send() -> None:
        sent.extend(backward.reduce(task=-1) for _ in range(2))
        backward.works.clear()  # C++ has waited for both

    backward.hook.wrap(target, send)()
    assert list(backward.recorder.outbox.records) == sent
    assert [record.waits for record in sent] == [1, 1]
    assert [record.blocked_ns > 0 for record in sent] == [False, True]
    assert backward.recorder.failures == {}


def test_what_join_sums_up_in_forward_is_waited_for_in_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which ranks still train: DDP's forward does not wait for it, though only C++ holds it."""
    backward = Backward(monkeypatch)
    sent: list[Collective] = []
    forward = DdpWaitHook.targets[0]

    def join() -> None:
        sent.append(backward.reduce(task=-1))
        backward.works.clear()

    backward.hook.wrap(forward, join)()
    assert backward.recorder.in_flight.unfinished() == sent
    sent.append(backward.reduce(task=1))
    backward.end(1, sent[1])
    assert all(record in sent for record in backward.recorder.outbox.records)
    assert [record.waits for record in sent] == [1, 1]
    assert backward.recorder.failures == {}
