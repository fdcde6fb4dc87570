"""Notes how a process ends, by what only it can know: of many ranks the first one is the root.

Hooks are chained: whoever was there is called as before, and what others put on top stays there.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from dsprof.recording.this_process import when_child_ends
from dsprof.recording.watchdog.look import oom_kills
from dsprof.trace.lost_peers import lost
from dsprof.trace.schema import Note
from dsprof.trace.scope import clock

_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_PYTHON = str(Path(os.__file__).parent) + os.sep
_PACKAGES = ("/torch/", "/deepspeed/", "/site-packages/", "/dist-packages/")
_NOT_THE_USERS = (_PACKAGE, _PYTHON, "<frozen ", *_PACKAGES)
_MESSAGE = 10_000
_TORCH_SPAWN = "torch.multiprocessing.spawn"


class CrashNotes:
    """The uncaught exception of the main thread, and notes on those of others."""

    def __init__(self, define: Callable[[Any], None]) -> None:
        self.exception: type[BaseException] | None = None
        self.failed_ns = 0
        self.raised_at = ""
        self.lost = ""
        self._define = define
        self._killed_before = oom_kills(os.getpid())
        self._is_on = True
        self._main, self._others = sys.excepthook, threading.excepthook
        sys.excepthook = self._in_main
        threading.excepthook = self._in_thread
        self._put = (sys.excepthook, threading.excepthook)
        when_child_ends(self._in_child)

    def _in_main(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._note(error, trace)
        self._main(kind, error, trace)

    def _note(self, error: BaseException, trace: TracebackType | None) -> None:
        if self._is_on:
            with suppress(Exception):
                self.exception, self.failed_ns = type(error), clock()
                self.raised_at, self.lost = raised_at(trace), lost(str(error)[:_MESSAGE])

    def _in_child(self) -> None:
        """Note the exception by which a child of multiprocessing ends: it calls no hook for it."""
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            error = error.__context__ if _is_of_torch(error.__traceback__) else None
        if isinstance(error, Exception):
            self._note(error, error.__traceback__)

    def _in_thread(self, args: threading.ExceptHookArgs, /) -> None:
        if self._is_on and args.exc_type is not SystemExit:
            with suppress(Exception):
                name = args.thread.name if args.thread is not None else "?"
                where = raised_at(args.exc_traceback)
                self._define(
                    Note(f"thread {name} ended by {args.exc_type.__qualname__} at {where}")
                )
        self._others(args)

    def oom_kills(self) -> int:
        """Return how many processes of this cgroup the kernel has killed for memory since."""
        return oom_kills(os.getpid()) - self._killed_before

    def close(self) -> None:
        """Put back what was there, unless others have wrapped us."""
        self._is_on = False
        if sys.excepthook is self._put[0]:
            sys.excepthook = self._main
        if threading.excepthook is self._put[1]:
            threading.excepthook = self._others


def _is_of_torch(trace: TracebackType | None) -> bool:
    """Say whether torch raised SystemExit after it has written what a rank raised to a file."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == _TORCH_SPAWN


def raised_at(trace: TracebackType | None) -> str:
    """Return where an exception came from: `file:line function` of the user's innermost call."""
    found = last = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        last = f"{code.co_filename}:{trace.tb_lineno} {code.co_name}"
        if not any(part in code.co_filename for part in _NOT_THE_USERS):
            found = last
        trace = trace.tb_next
    return found or last
