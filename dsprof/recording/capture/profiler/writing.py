"""The thread of a window: keeps it small while it is open, and writes its profile at the end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsprof.recording.capture.profiler.profile_file import write_profile
from dsprof.trace.dumps.state_file import process_of
from dsprof.trace.lines import header_of
from dsprof.trace.rolling.parts import PROFILE, part_of
from dsprof.trace.schema import Header, Note

_MOST_S = 10.0
_MOST_GROWTH_BYTES = 32_000_000
"""Torch needs five to seven times as much again when the window ends."""

_LOOK_S = 0.05
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProfileWriter(threading.Thread):
    """Of one window."""

    def __init__(
        self,
        trace: Path,
        steps: range,
        header: Header,
        disclose: Callable[[Any], Any],
        end_soon: Callable[[], None],
        note: Callable[[Note], None],
        fail: Callable[[str, BaseException], None],
    ) -> None:
        """Know how much memory the process uses before the window.

        Raises:
            OSError: the system does not say.
        """
        super().__init__(name="dsprof-profiler", daemon=True)
        self._trace, self._steps = trace, steps
        self._header, self._disclose = header, disclose
        self._end_soon, self._note, self._fail = end_soon, note, fail
        self._ended = threading.Event()
        self._results: Any = None
        self._largest_bytes = _resident_bytes() + _MOST_GROWTH_BYTES
        self._latest_s = time.monotonic() + _MOST_S

    def end_early(self) -> None:
        """Ask for the end of the window from now on, until it has ended."""
        self._latest_s = 0.0

    def _has_trace(self) -> bool:
        """Say whether the trace is in its place, and not that of another process.

        Another has then begun and put the trace away, or somebody moved the folder. The profile
        would be in no budget, or in that of the other.
        """
        found = header_of(self._trace)
        return found is not None and process_of(found) == process_of(self._header)

    def end(self, results: Any) -> None:
        """Write these results; None where there are none."""
        self._results = results
        self._ended.set()

    def run(self) -> None:
        """Wait for the end of the window, and write."""
        try:
            while not self._ended.wait(_LOOK_S):
                if time.monotonic() > self._latest_s or _resident_bytes() > self._largest_bytes:
                    self._end_soon()
            if self._results is not None and self._has_trace():
                path = part_of(self._trace, PROFILE)
                write_profile(self._results, path, self._header, self._disclose)
                self._note(Note(f"torch.profiler ran from step {self._steps.start:,} on"))
        except Exception as error:  # noqa: BLE001 - it may end; training goes on
            self._fail("capture_profiler", error)
        finally:
            self._results = None


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
