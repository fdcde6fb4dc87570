"""When torch.profiler runs with a capture: from the boundary of one step to that of another.

Torch's profiler ends only in the thread that began it; the main thread lives as long as the
process. So a window is opened there, or not at all.

Autograd runs hooks under a copy of the state of the thread, and then puts the old state back. A
profiler that began in a hook would be lost, and one that ended there would be active again. So no
window begins or ends in a hook.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dsprof.recording.capture.profiler.main_thread import caller
from dsprof.recording.capture.profiler.others import OtherProfilers
from dsprof.recording.capture.profiler.writing import ProfileWriter
from dsprof.trace.schema import Header, Note

_MOST_STEPS = 20
_LOOK_S = 0.05
_PATIENCE_S = 10.0
"""Another thread waits so long until the main thread has ended the window."""

_WRITTEN_WITHIN_S = 10.0


class _Wanted(NamedTuple):
    steps: range
    is_alarm: bool  # else a request of a user, which has priority


class ProfilerWindow:
    """The window of one session. Only the main thread opens and ends it."""

    def __init__(
        self, note: Callable[[Note], None], fail: Callable[[str, BaseException], None]
    ) -> None:
        """Follow other profilers from now on.

        Raises:
            AttributeError: this release of torch has other functions.
        """
        self._note, self._fail = note, fail
        self._new: deque[_Wanted] = deque()
        self._wanted: _Wanted | None = None
        self._steps = range(0)  # of the last window
        self._is_for_alarm = False  # of the last window
        self._profile: Any = None  # while the window is open
        self._is_switching = False  # set by the main thread only
        self._writer: ProfileWriter | None = None
        self._end_soon = caller(self._end)
        self._others = OtherProfilers(self._is_switching_here, self._give_way)
        self._others.install()
        os.register_at_fork(before=self._end_before_fork)

    def begin(
        self, header: Header, trace: Callable[[], Path], disclose: Callable[[Any], Any]
    ) -> None:
        """Belong to a new trace; `trace` returns where it is. Its steps count from 0."""
        self._decline_all("the default process group was recreated first")
        self._end_here()
        self._steps = range(0)
        self._header, self._trace, self._disclose = header, trace, disclose

    def want(self, steps: range, *, is_alarm: bool = False) -> None:
        """Profile the first of these steps that have not begun; users have priority over alarms."""
        self._new.append(_Wanted(steps, is_alarm))

    def slows(self, step: int) -> bool:
        """Say whether a step takes longer because of the last window."""
        return bool(self._steps) and self._steps.start - 1 <= step <= self._steps.stop + 1

    def end_step(self, step: int) -> None:
        """Open or end the window; a step has just ended."""
        while self._new and not self._is_later(self._new[0]):
            self._choose(self._new.popleft())
        begun, wanted = step + 1, self._wanted
        if self._profile is not None:
            if begun >= self._steps.stop:
                self._end_here()
        elif wanted is not None and begun >= wanted.steps.stop:
            in_the_way = "the last profile is still being written"
            self._decline_wanted(in_the_way if self._is_writing() else "these steps were over")
        elif wanted is not None and begun >= wanted.steps.start and not self._is_writing():
            self._wanted, self._is_for_alarm = None, wanted.is_alarm
            self._open(range(begun, wanted.steps.stop)[:_MOST_STEPS])

    def _is_later(self, new: _Wanted) -> bool:
        """Say whether a user asks for steps after those for which a window of a user waits."""
        wanted = self._wanted
        if wanted is None or wanted.is_alarm or new.is_alarm:
            return False
        return new.steps.start >= wanted.steps.stop

    def _choose(self, new: _Wanted) -> None:
        """Let a request of a user replace one of an alarm; otherwise the one that waits stays."""
        wanted = self._wanted
        is_busy = self._profile is not None or self._is_writing()
        if new.is_alarm and is_busy and not self._is_for_alarm:
            self._decline(new.steps, "a requested window has priority")
        elif wanted is not None and (new.is_alarm or not wanted.is_alarm):
            self._decline(new.steps, f"a window already waits for step {wanted.steps.start:,}")
        else:
            self._decline_wanted(f"a request for steps from {new.steps.start:,} on replaced it")
            self._wanted = new

    def _is_writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def close(self) -> None:
        """End the window, write its profile, and follow other profilers no more."""
        self._decline_all("the recording ended first")
        with suppress(RuntimeError):  # it ends later, or never: nothing waits for its profile
            self._give_way()
        self._others.remove()
        if self._writer is not None and self._profile is None:
            self._writer.join(_WRITTEN_WITHIN_S)

    def abandon(self) -> None:
        """Do nothing any more, in a forked child."""
        profile, self._profile, self._wanted = self._profile, None, None
        is_here = sys.modules["torch"].autograd._profiler_enabled()
        self._others.remove()
        # A hook of autograd has forked. With a device it stays: CUPTI does not survive a fork.
        if profile is not None and is_here and not profile.use_device:
            _disable()

    # -- in the main thread ---------------------------------------------------------------------

    def _open(self, steps: range) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._decline(steps, "steps end in a thread that is not the main thread")
            return
        if _is_in_backward():
            self._decline(steps, "steps end in hooks of autograd")
            return
        self._is_switching = True
        writer = None
        try:
            self._profile = profile = _new_profile(self._header.device)
            # Only now: another one that begins meanwhile waits for ours.
            if self._others.are_active():
                self._profile = None
                self._decline(steps, "another profiler is active")
                return
            writer = self._new_writer(steps)
            writer.start()  # first: no profile without something that bounds it
            profile.__enter__()
            self._writer, self._steps = writer, steps
        except BaseException as error:
            self._profile = None
            if writer is not None:
                writer.end(None)
                if sys.modules["torch"].autograd._profiler_enabled():
                    _disable()
            if not isinstance(error, Exception):  # as Ctrl-C
                raise
            self._fail("capture_profiler", error)
        finally:
            self._is_switching = False

    def _new_writer(self, steps: range) -> ProfileWriter:
        return ProfileWriter(
            self._trace(),
            steps,
            self._header,
            self._disclose,
            self._end_soon,
            self._note,
            self._fail,
        )

    def _end_here(self) -> None:
        """End the window, at once in the main thread and soon from another."""
        is_main = threading.current_thread() is threading.main_thread()
        (self._end if is_main else self._end_soon)()

    def _end(self) -> None:
        """End the window, soon after backward if within; unless none is open, or it switches."""
        profile, writer = self._profile, self._writer
        if self._is_switching or profile is None or writer is None:
            return
        if _is_in_backward():
            writer.end_early()
            return
        results = None
        try:
            self._is_switching = True
            results = _results(profile)
        except Exception as error:  # noqa: BLE001 - training goes on
            self._fail("capture_profiler", error)
        finally:  # also after Ctrl-C
            self._profile, self._is_switching = None, False
            writer.end(results)

    def _end_before_fork(self) -> None:
        """End the window: a child would record for as long as it lives."""
        if threading.current_thread() is threading.main_thread():
            self._end()

    def _is_switching_here(self) -> bool:
        return self._is_switching and threading.current_thread() is threading.main_thread()

    # -- in any thread --------------------------------------------------------------------------

    def _give_way(self) -> None:
        """End the window, and wait until that has happened.

        Raises:
            RuntimeError: another thread asks, and the main thread is blocked: torch would crash
                the process. Or a hook of autograd asks in the main thread.
        """
        if threading.current_thread() is threading.main_thread():
            self._end()
            if self._profile is not None:
                raise RuntimeError(
                    "dsprof profiles this thread, and cannot stop in a hook of autograd: profile "
                    "later, or unset capture_profiler"
                )
        end_s = time.monotonic() + _PATIENCE_S
        while self._profile is not None:
            if time.monotonic() > end_s:
                raise RuntimeError(
                    "dsprof profiles the main thread, which is blocked, and torch profiles one "
                    "thread at a time: profile later, or unset capture_profiler"
                )
            self._end_soon()
            time.sleep(_LOOK_S)

    def _decline_all(self, why: str) -> None:
        self._decline_wanted(why)
        while self._new:
            self._decline(self._new.popleft().steps, why)

    def _decline_wanted(self, why: str) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._decline(wanted.steps, why)

    def _decline(self, steps: range, why: str) -> None:
        self._note(Note(f"torch.profiler did not run from step {steps.start:,} on: {why}"))


def _new_profile(device: str) -> Any:
    torch = sys.modules["torch"]
    used = device if device == "cuda" and torch.cuda.is_initialized() else None
    return torch.autograd.profiler.profile(use_device=used, use_kineto=True)


def _results(profile: Any) -> Any:
    """End a profile as torch does; some releases would also make a table of it, in Python."""
    torch = sys.modules["torch"]
    is_on = torch.autograd._profiler_enabled()
    try:
        if profile.use_device:
            getattr(torch, profile.use_device).synchronize()
    finally:  # also after Ctrl-C
        results = _disable()
    if not is_on:  # torch would crash the process when it writes these results
        raise RuntimeError("other code ended torch.profiler")
    return results


def _is_in_backward() -> bool:
    """Whether autograd runs this code in this thread, also for compiled or nested backward."""
    return bool(sys.modules["torch"]._C._current_graph_task_id() != -1)


def _disable() -> Any:
    profiler = sys.modules["torch"].autograd.profiler
    try:
        return profiler._disable_profiler()
    finally:
        profiler._run_on_profiler_stop()
