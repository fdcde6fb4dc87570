"""What hooks read at each call, and the wrappers in C of the hooks that run most often.

A training step evicts the caches between two hooks, so that a hook costs the memory it touches. In
C (`c/`, where a compiler was there at the installation) the state is one struct, and the usual case
of a hook is a function; the hooks in Python do all the rest, and everything without a compiler.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from dsprof.trace.scope import Scope

if TYPE_CHECKING:
    from dsprof.trace.schema import Fetch

_REVISION = 14
"""As in `c/module.c`: raise both when what Python hands to C changes."""

compiled: ModuleType | None = None
"""The module in C; None: it was not compiled, or in a checkout from other sources."""

with suppress(Exception):  # one of other sources may fail in any way
    compiled = importlib.import_module("dsprof.recording.recorder._hot")
    if getattr(compiled, "REVISION", 1) != _REVISION:
        compiled = None


class HotState:
    """As in `c/hot.h`. Each owner sets its own part; any thread reads all, without a lock."""

    __slots__ = (
        *("blocking", "calls", "completed", "device", "followers", "ids"),
        *("in_epilogue", "keep", "longest_ns", "overflow", "phases", "recording", "records"),
        *("sampled_ns", "samples", "scope", "step_start_ns", "works"),
    )
    recording: bool
    in_epilogue: bool  # of backward, which flushes what buckets still hold
    scope: Scope
    device: Any  # DeviceWatch, once collectives run on a device
    followers: tuple[Callable[..., None], ...]
    ids: Iterator[int]
    works: dict[int, tuple[Any, Any]]
    blocking: dict[int, Any]
    completed: dict[int, tuple[Any, Any]]
    keep: Callable[[Any], None]
    records: Any  # a deque; in C, Records
    overflow: Callable[[Any], None]
    phases: list[Any]  # what `Progress.enter` gave: begun and not ended, in this order
    step_start_ns: int
    calls: int
    samples: int
    sampled_ns: int
    longest_ns: int  # of the samples

    open_state: Callable[..., None]  # in C only, as are these
    issue: Callable[..., None]
    done: Callable[..., None]
    close_state: Callable[[], None]
    current: Callable[[], Context]
    become: Callable[[Context], None]
    is_in: Callable[[str, int], bool]
    enter: Callable[..., Any]
    leave: Callable[[Any], None]
    end_micro_step: Callable[[], None]
    next_step: Callable[[str, int, int, int], int]

    @property
    def phase(self) -> str:
        """The phase of the scope; in C no `Scope` is made for it."""
        return self.scope.phase

    def __init__(self) -> None:
        self.recording = self.in_epilogue = False
        self.calls = self.samples = self.sampled_ns = self.longest_ns = 0


@dataclass(slots=True, eq=False)
class Context:
    """On whose behalf a thread communicates: set by hooks of meaning, read by the wire hook.

    Replaced as a whole when any part changes, shared by the records made meanwhile.
    """

    request: int = 0  # id of the call into a library above c10d (deepspeed.comm...)
    requested: str = ""  # what that call asked for
    flush: int = 0  # id of the bucket flush
    fetch: int = 0  # id of the parameter fetch
    wire_ops: int = 0  # collectives that the request caused on the wire
    coalesced: int = 0  # number of the batch that a backend launches at once
    site: int = 0  # the call site of all that it communicates; 0: it has to be looked for


class Switch:
    """Whether a hook is inert, and whether it leaves nothing to C."""

    __slots__ = ("broken", "in_python")

    def __init__(self) -> None:
        self.broken = self.in_python = False


class Fetching:
    """The fetch and the release that go on, for the hook of ZeRO-3."""

    __slots__ = ("fetch", "is_watched", "outer", "release", "submit_ns", "wait_ns")

    def __init__(self) -> None:
        self.fetch = self.submit_ns = self.wait_ns = 0  # of the fetch
        self.is_watched = False  # the hook looks at the parameters in flight
        self.outer: Context = NOBODY  # on whose behalf the thread was before
        self.release: Fetch | None = None  # the one that goes on; in C a `Span`


@dataclass(slots=True, eq=False)
class EngineProgress:
    """How far one engine is in its training, for the hook of DeepSpeed's engines."""

    number: int
    schedule: Any  # of a pipeline
    micro_step: int = 0
    had_backward: bool = False  # in this micro-step
    in_step: bool = False  # in a call that ends a step or a micro-step
    stepped: bool = False  # and the optimizer has been called in it
    backward: Any = None  # the phase, begun by `_backward_prologue`
    is_described: bool = False  # its model, in this trace


NOBODY = Context()
"""The context of a thread that communicates for the user himself."""


def _bind(wrapper: Any, instance: object, owner: type | None = None) -> Any:
    """Bind a wrapper in C as its function would be, for whoever puts it on a class by himself.

    In Python, as torch.compile traces into it; the hooks bind theirs by an `instancemethod`.
    """
    binds = hasattr(type(wrapper.__wrapped__), "__get__")
    return MethodType(wrapper, instance) if binds and instance is not None else wrapper


if compiled is not None and not TYPE_CHECKING:
    compiled.Wrapper.__get__ = _bind
    HotState, Context, Switch = compiled.HotState, compiled.Context, compiled.Switch
    NOBODY, Fetching = compiled.NOBODY, compiled.Fetching
    EngineProgress = compiled.EngineProgress
