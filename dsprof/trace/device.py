"""What an accelerator did: kernels, copies and memsets, as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

_IntArray = npt.NDArray[np.int64]

COMPUTE, COMMUNICATION, COPY = range(3)

ITEM = "aten::_local_scalar_dense"
"""What `.item()`, `float(tensor)` and `if tensor:` come to; it has a synchronising call inside."""


@dataclass(slots=True)
class HostStops:
    """Calls in which the host waited for the device, as columns; `name` is a code into `words`."""

    words: list[str]
    name: _IntArray
    start_ns: _IntArray
    end_ns: _IntArray


@dataclass(slots=True)
class DeviceActivity:
    """One row a kernel or copy, in the order of the file; times in ns since the trace's start.

    `name` and `library` are codes into `words`; `library` says whose communication kernel it is.
    """

    words: list[str]
    name: _IntArray
    library: _IntArray
    kind: _IntArray  # COMPUTE, COMMUNICATION or COPY
    stream: _IntArray
    start_ns: _IntArray
    end_ns: _IntArray
    is_usual: npt.NDArray[np.bool_]  # a communication kernel with "nccl" or "rccl" in its name
    stops: HostStops | None = None  # None: the file does not tell

    def __len__(self) -> int:
        return len(self.name)

    def moved(self, shift_ns: int) -> DeviceActivity:
        """Return the same with all times later by `shift_ns`."""
        stops = self.stops and _moved(self.stops, shift_ns)
        return replace(_moved(self, shift_ns), stops=stops)


_Timed = TypeVar("_Timed", HostStops, DeviceActivity)


def _moved(rows: _Timed, shift_ns: int) -> _Timed:
    return replace(rows, start_ns=rows.start_ns + shift_ns, end_ns=rows.end_ns + shift_ns)


@dataclass(slots=True)
class Profile:
    """What a profiler saw of a rank's device, from `start_ns` to `end_ns`.

    Times are ns since the start of the trace that it stands beside where `is_tied`, else since its
    own. `operations` counts its communication kernels by what they do.
    """

    device: DeviceActivity
    start_ns: int
    end_ns: int
    operations: dict[str, int]
    is_tied: bool
    is_sampled: bool
