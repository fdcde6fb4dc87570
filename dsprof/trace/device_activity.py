"""Activity of an accelerator: kernels, copies and memsets, as columns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dsprof.trace.columns import BoolArray, IntArray

COMPUTE, COMMUNICATION, COPY = range(3)


def _no_spans() -> IntArray:
    return np.zeros((2, 0), np.int64)


(
    LOADING,
    ALLOCATION,
    TRANSFER,
    SYNCHRONISATION,
    DATA_LOADER,
    LAUNCH,
) = range(1, 7)
"""Kinds of calls of the host during which a device may be idle."""


@dataclass(slots=True)
class HostWork:
    """Activity of the host beside a device: calls that may keep it idle, and when operators ran.

    Columns of one row per call; `name`, `operator` and `annotation` are codes into `words`, and the
    last two name what surrounds a call that takes long, 0 ("") where nothing does.
    """

    words: list[str]
    name: IntArray
    kind: IntArray
    start_ns: IntArray
    end_ns: IntArray
    operator: IntArray
    annotation: IntArray
    launches: BoolArray  # whether the calling thread launches work of the device
    operators: IntArray  # starts and ends of these threads' outer operators, shape (2, n)
    shows_python: bool = False  # Python functions were recorded

    def moved(self, shift_ns: int) -> HostWork:
        """Return the same with all times later by `shift_ns`."""
        return replace(
            self,
            start_ns=self.start_ns + shift_ns,
            end_ns=self.end_ns + shift_ns,
            operators=self.operators + shift_ns,
        )


@dataclass(slots=True)
class DeviceActivity:
    """One row a kernel or copy, in the order of the file; times in ns since the trace's start.

    `name` and `library` are codes into `words`; `library` says whose communication kernel it is.
    """

    words: list[str]
    name: IntArray
    library: IntArray
    kind: IntArray  # COMPUTE, COMMUNICATION or COPY
    stream: IntArray
    start_ns: IntArray
    end_ns: IntArray
    is_usual: BoolArray  # a communication kernel with "nccl" or "rccl" in its name
    host: HostWork | None = None  # None: not recorded
    elsewhere: IntArray = field(default_factory=_no_spans)
    """Starts and ends of what other devices of the process did, shape (2, n)."""

    def __len__(self) -> int:
        return len(self.name)

    def moved(self, shift_ns: int) -> DeviceActivity:
        """Return the same with all times later by `shift_ns`."""
        return replace(
            self,
            start_ns=self.start_ns + shift_ns,
            end_ns=self.end_ns + shift_ns,
            host=self.host and self.host.moved(shift_ns),
            elsewhere=self.elsewhere + shift_ns,
        )

    def within(self, begin_ns: int, end_ns: int) -> DeviceActivity:
        """Return what ran from `begin_ns` to `end_ns`; what reaches beyond that is cut there."""
        inside = (self.end_ns > begin_ns) & (self.start_ns < end_ns)
        return replace(
            self,
            name=self.name[inside],
            library=self.library[inside],
            kind=self.kind[inside],
            stream=self.stream[inside],
            start_ns=np.maximum(self.start_ns[inside], begin_ns),
            end_ns=np.minimum(self.end_ns[inside], end_ns),
            is_usual=self.is_usual[inside],
        )


@dataclass(slots=True)
class Profile:
    """A rank's device as a profiler saw it, from `start_ns` to `end_ns`.

    Times are ns since the start of the trace beside it where `is_tied`, else since its
    own. `operations` counts its communication kernels by what they do; empty: unknown.
    """

    device: DeviceActivity
    start_ns: int
    end_ns: int
    operations: dict[str, int]
    is_tied: bool
    is_sampled: bool
