"""While nothing is recorded, a hook costs a call and a look: no memory, no lock, no entry."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Sized
from typing import Any

import pytest

from dsprof.hooks.base import Hook, Target
from dsprof.hooks.deepspeed.fetch import _WAITS
from dsprof.hooks.patching import Patch
from dsprof.hooks.wire import work as work_module
from dsprof.hooks.wire.work import PythonWorks
from dsprof.recording.recorder.recorder import Recorder
from tests.hooks.test_failing_hooks import CALLS, KINDS, wrap

CALLS_OF_EACH = 1000
WHATEVER_PYTHON_KEEPS = 20  # blocks: free lists, caches of attributes


class Lock:
    """Counts who takes it."""

    def __init__(self) -> None:
        self.taken = 0

    def __enter__(self) -> None:
        self.taken += 1

    def __exit__(self, *_: object) -> None: ...


def stopped() -> Recorder:
    recorder = Recorder(lambda: True)
    assert recorder.arm()
    recorder.stop()
    return recorder


def without_a_group() -> Recorder:
    return Recorder(lambda: False)


def parts(recorder: Recorder) -> list[object]:
    """Return all that a recorder is made of, and what hooks share."""
    own = [part for part in vars(recorder).values() if hasattr(part, "__dict__")]
    return [*own, *recorder._shared.values()]


def calls_of(target: Target) -> list[tuple[Any, ...]]:
    calls = [CALLS.get(target.name, (object(),))]
    return calls + [(object(), name) for name in _WAITS if target.name == "start_event"]


def sizes(*owners: object) -> dict[str, int]:
    return {
        f"{type(owner).__name__}.{name}": len(value)
        for owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, Sized)
    }


@pytest.mark.parametrize("off", [stopped, without_a_group])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_leaves_nothing_behind(kind: type[Hook], off: Callable[[], Recorder]) -> None:
    recorder = off()
    hook = kind(recorder)
    try:
        for target in kind.targets:
            wrapped = wrap(hook, target, lambda *args, **kwargs: None)
            blocks_of(wrapped, calls_of(target), 100)  # some do something once
            kept = sizes(hook, recorder, *parts(recorder))
            # What a call leaves is there every time; other threads of the process are not.
            grown = (blocks_of(wrapped, calls_of(target), CALLS_OF_EACH) for _ in range(4))
            assert any(blocks < WHATEVER_PYTHON_KEEPS for blocks in grown), target.name
            assert sizes(hook, recorder, *parts(recorder)) == kept, target.name
    finally:
        hook.uninstall()


def blocks_of(wrapped: Callable[..., Any], calls: list[tuple[Any, ...]], times: int) -> int:
    """Return how many more blocks of memory Python has in use after so many calls."""
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        for _ in range(times):
            for args in calls:
                wrapped(*args)
        return sys.getallocatedblocks() - before
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", KINDS)
def test_no_lock_is_taken_once_recording_has_ended(kind: type[Hook]) -> None:
    recorder = stopped()
    hook, lock = kind(recorder), Lock()
    for owner in (recorder, *parts(recorder), hook):
        for name, value in list(vars(owner).items()):
            if isinstance(value, type(threading.RLock())):
                setattr(owner, name, lock)
    for target in kind.targets:
        wrapped = wrap(hook, target, lambda *args, **kwargs: None)
        for args in calls_of(target):
            wrapped(*args)
    assert lock.taken == 0
    recorder.progress.end_step("user")
    recorder.progress.end_micro_step()
    assert lock.taken == 0
    with recorder.progress._lock:
        assert lock.taken == 1  # or else nothing was counted


def test_a_handle_in_python_is_not_timed_once_recording_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Handle:
        waits = 0

        def wait(self) -> bool:
            self.waits += 1
            return True

    recorder = stopped()
    patch = Patch(Handle, "wait", PythonWorks(recorder)._timed)
    patch.apply()
    monkeypatch.setattr(work_module, "clock", None)
    handle = Handle()
    assert handle.wait()
    assert handle.waits == 1
