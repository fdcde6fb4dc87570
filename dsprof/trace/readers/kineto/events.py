"""The parts of a PyTorch profiler trace that are read, and no others: the decoder skips the rest.

Names as torch's profiler (Kineto) writes them, in its old and its present schema.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import reduce
from operator import attrgetter, or_
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from dsprof.trace.columns import IntArray

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

KERNEL, COPY = "kernel", "copy"
DEVICE_CATEGORIES = {
    "kernel": KERNEL,
    "Kernel": KERNEL,
    "gpu_memcpy": COPY,
    "Memcpy": COPY,
    "memcpy": COPY,
    "gpu_memset": COPY,
    "Memset": COPY,
    "memset": COPY,
}

OTHER_DEVICES = {
    "async_npu": "Ascend",  # ties a call of the host to its work, which bears no category
    "hpu_op": "Gaudi",
    "mtia_ccp_events": "MTIA",
    "mtia_runtime": "MTIA",
    "privateuse1_runtime": "a custom backend's",
    "privateuse1_driver": "a custom backend's",
    "glow_runtime": "Glow",
}
"""Categories of events that show work of a device whose kernels bear no category read here."""

OF_XPU = ("xpu_runtime", "xpu_driver")

OF_TORCH = frozenset({
    "cpu_op", "user_annotation", "gpu_user_annotation", "python_function", "cpu_instant_event",
    "cuda_runtime", "cuda_driver", "cuda_sync", "overhead", "collective_comm", "runtime", "driver",
    "Operator", "Runtime", "PythonFunction", *OF_XPU, *DEVICE_CATEGORIES,
})  # fmt: skip
"""Categories that torch's profiler gives to what takes time; other tools give none, or others."""

ANNOTATION = "user_annotation"
OPERATORS = frozenset(("cpu_op", "Operator", ANNOTATION))
"""Categories of what torch's operators did, and of what the program or a library marked."""

PYTHON = frozenset(("python_function", "PythonFunction"))
ON_DEVICE = frozenset((*DEVICE_CATEGORIES, "gpu_user_annotation"))


MERGED = (
    "profiles of several processes, merged into one file; give the file that each rank exported"
)

STEP_PREFIX = "ProfilerStep#"
CPU_COLLECTIVES = ("gloo:", "mpi:", "ucc:")
"""Spans that a backend on CPUs records from the start of a collective to its end."""


_NOTHING = msgspec.Raw()


class Args(msgspec.Struct, gc=False, frozen=True):
    """Arguments of an event; the collective's own are on its kernels and on its call."""

    stream: Int | str | None = None
    index: Int = msgspec.field(default=-1, name="Ev Idx")
    old_index: Int = msgspec.field(default=-1, name="Profiler Event Index")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    in_elements: Int | None = msgspec.field(default=None, name="In msg nelems")
    out_elements: Int | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None
    group_name: Int | str | None = msgspec.field(default=None, name="Process Group Name")
    group_label: str | None = msgspec.field(default=None, name="Process Group Description")
    group_ranks: str | tuple[Int, ...] | None = msgspec.field(
        default=None, name="Process Group Ranks"
    )
    group_size: Int | None = msgspec.field(default=None, name="Group size")
    external: Int | str | None = msgspec.field(default=None, name="External id")
    shapes: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=_NOTHING, name="Input type")


class TraceEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a duration, the only kind of event that is read: times in microseconds."""

    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: Int | str | None = None  # of a kernel its device
    tid: Int | str | None = None
    args: Args = Args()


def is_relabelled(event: object) -> bool:
    """Say whether a tool that merges profiles wrote an operator: torch gives a process a number."""
    return (
        isinstance(event, TraceEvent)
        and event.cat in OPERATORS
        and isinstance(event.pid, str)
        and not event.pid.isdecimal()
    )


class Flow(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """The beginning of an arrow from one event to another."""

    cat: str = ""


_OTHERS = tuple(
    msgspec.defstruct(f"Phase{ord(phase)}", (), tag_field="ph", tag=phase, gc=False)
    for phase in "BEbenOND(),CFIMPRSTVcfiptv"
)
EVENT: Any = reduce(or_, _OTHERS, TraceEvent | Flow)
"""An event of any phase that the format knows: up to a third are not worth the decoding."""


class GroupConfig(msgspec.Struct):
    """A process group as `distributedInfo` describes it."""

    pg_name: str = ""
    pg_desc: str = ""
    backend_config: str = ""
    pg_size: Int = 0
    ranks: list[Int] = []


class Distributed(msgspec.Struct):
    """Who wrote the file."""

    rank: Int = -1
    world_size: Int = 0
    backend: str = ""
    nccl_version: str = ""
    pg_config: list[GroupConfig] = []


class Metadata(msgspec.Struct):
    """Fields of the file besides events."""

    distributed: Distributed | None = msgspec.field(default=None, name="distributedInfo")
    base_ns: Int = msgspec.field(default=0, name="baseTimeNanoseconds")
    devices: list[dict[str, Any]] = msgspec.field(default=[], name="deviceProperties")
    host: str = msgspec.field(default="", name="host_name")
    cuda_runtime: Int = msgspec.field(default=0, name="cuda_runtime_version")
    hip_runtime: Int = msgspec.field(default=0, name="hip_runtime_version")


DAMAGED = -(2**62)
"""In place of a time that is none."""
_LONGEST_US = 1e13  # four months: later times are damage
_Floats = npt.NDArray[np.float64]
_START, _DURATION = attrgetter("ts"), attrgetter("dur")


def times_of(events: Sequence[TraceEvent], origin_us: float) -> IntArray:
    """Return a row of starts and one of ends in ns, shape (2, events); DAMAGED where they are."""
    starts = np.fromiter(map(_START, events), np.float64, len(events))
    lasts = np.fromiter(map(_DURATION, events), np.float64, len(events))
    return on_grid(starts, lasts, origin_us)


def on_grid(starts: _Floats, lasts: _Floats, origin_us: float) -> IntArray:
    """Return the same of starts and durations in microseconds."""
    # Added first: on the coarse grid of absolute times an end meets the start that it touches.
    with np.errstate(over="ignore"):  # 1e308 is damage, and no warning to the user
        times = np.stack([starts, starts + np.fmax(lasts, 0.0)]) - origin_us
        is_sound = (np.abs(times) < _LONGEST_US).all(axis=0)
        return np.rint(np.where(is_sound, times * 1000, DAMAGED)).astype(np.int64)


_GAPS = 8
"""Threads take numbers in blocks of their own, and operators begin before a window."""
_GAP_SHARE = 0.05
"""A sample has a larger share of gaps in its numbers: above 0.5; whole files have below 0.02."""


class Numbers:
    """The numbers of all operators; where these have none, those of all events: what is missing.

    Torch numbers operators without gaps. A window that was cut out of a longer recording begins at
    any number and is whole; a sample has gaps all over.
    """

    def __init__(self) -> None:
        self._operators = array("q")
        self._events = array("q")

    def add(self, events: Sequence[TraceEvent], operators: Sequence[TraceEvent]) -> None:
        """Take the numbers of a chunk."""
        if found := [n for e in operators if type(n := e.args.external) is int]:
            self._operators.extend(found)
        elif not self._operators:
            indices = (max(event.args.index, event.args.old_index) for event in events)
            self._events.extend(number for number in indices if number >= 0)

    def left_out(self) -> str:
        """Say how many of the events that torch numbered are here; "" where that is all."""
        numbers = np.unique(np.array(self._operators or self._events, np.int64))
        gaps = int(np.count_nonzero(np.diff(numbers) > 1))
        if gaps <= max(_GAPS, _GAP_SHARE * len(numbers)):
            return ""
        return f"{len(numbers):,} of about {int(numbers[-1] - numbers[0]) + 1:,}"
