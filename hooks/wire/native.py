"""Kernels in the dispatcher that are C++: a call is passed on without conversions to Python.

`dsprof build` compiles them for the torch that is installed (`dsprof.hooks.wire.native_build`); a
training process compiles nothing, and uses them if they are there. They see what the kernels in
Python see, and have the record made by the same functions.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import Any

import torch

from dsprof.files.ownership import why_untrusted
from dsprof.hooks.base import Hook, hide_from_dynamo, nothing
from dsprof.hooks.wire.collectives import is_traced
from dsprof.hooks.wire.dispatcher import DispatcherHook
from dsprof.hooks.wire.functional import WAIT, FunctionalHook
from dsprof.hooks.wire.interception import AutomaticHook, CompleteHook
from dsprof.hooks.wire.operations import WireOp
from dsprof.trace.dumps.state_file import (
    BEAT_NS,
    SIZE_BYTES,
    STACKS,
    STACKS_NS,
    STARVED_NS,
)

Before = Callable[..., Any]
After = Callable[..., None]

MODULE = "dsprof_kernels"

_SEAL = b"\ndsprof kernels "
"""Mark before the digest at the end of a file: to load one that was cut would kill us."""

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.cpp")))


class _Watched:
    """The kernels that report to one hook; they outlive it, and then report nothing."""

    def __init__(self, hook: Hook) -> None:
        self.kernels = load_kernels()
        self._fail = functools.partial(_fail, hook)
        self._watched: list[tuple[str, str, Before]] = []

    def add(self, watch: Callable[..., None], operation: str, before: Before, after: After) -> None:
        """Watch an operation; `watch` is the function of `kernels` for its kind."""
        namespace, _, name = operation.partition("::")
        # First, and for good: a signal handler of the user may raise at any point, here as well as
        # in `_destroy`, which another thread may be at, too.
        self._watched.append((namespace, name, before))
        watch(namespace, name, before, after, self._fail)

    def _destroy(self) -> None:
        for watched in self._watched:
            self.kernels.unwatch(*watched)


class NativeDispatcherHook(DispatcherHook):
    """Sees collectives in the dispatcher by kernels in C++."""

    def _put_in(self, ops: dict[str, WireOp]) -> None:
        watched = self._library = _Watched(self)
        for name, op in ops.items():
            watched.add(watched.kernels.watch_collective, f"c10d::{name}", *self._callbacks(op))

    def _callbacks(self, op: WireOp) -> tuple[Before, After]:
        """Return what a kernel calls before a collective and after it.

        They repeat what the kernel in Python does in line, where a call less counts.
        """
        recorder, note, sized = self.recorder, self.make_note(op, None), op.sized
        in_flight, announced = recorder.in_flight, self.layers.announced
        noted_below = self.layers.noted_below

        def begin() -> bool:
            is_announced = announced and get_ident() in announced
            if is_announced or (not recorder.hot.recording and not recorder.arm()):
                return False
            if in_flight.device is not None:
                in_flight.device.begin()
            return True

        def noted(first: Any, second: Any, *more: Any) -> None:
            if self.broken:
                return
            try:
                record = note(sized((first, second)), *more)
                if record is not None:
                    noted_below[record.thread] = record.return_ns
                if in_flight.followers:
                    in_flight.tell_followers(record, first)
            except Exception as error:
                self.fail(error)

        hide_from_dynamo(begin, noted)
        return begin, noted


class NativeHook(CompleteHook):
    """Sees what Python issues in class ProcessGroup, and what C++ issues by kernels in C++."""

    dispatcher_hook = NativeDispatcherHook


class NativeAutomaticHook(AutomaticHook):
    """Goes to the dispatcher, to kernels in C++, when something communicates from C++."""

    dispatcher_hook = NativeDispatcherHook


class NativeFunctionalHook(FunctionalHook):
    """Notices functional collectives, and times `wait_tensor`, by kernels in C++."""

    def _put_in(self, issuing: list[str]) -> None:
        recorder, in_flight = self.recorder, self.recorder.in_flight

        def begin(tensor: torch.Tensor) -> Any:
            if not recorder.hot.recording or self.broken or is_traced(tensor):
                return False
            return in_flight.device.open() if in_flight.device is not None else None

        hide_from_dynamo(begin)
        hide_from_dynamo(FunctionalHook._waited, and_calls=True)
        waits, self._uses = _Watched(self), _Watched(self)
        self._libraries += (waits, self._uses)
        waits.add(waits.kernels.watch_wait, WAIT, begin, self._waited)
        notice = self._notice()
        for name in issuing:
            self._uses.add(waits.kernels.watch_use, name, notice, nothing)

    def _noticed(self) -> None:
        self._uses._destroy()


def watch_starvation(path: Path) -> bool:
    """Have stacks written to a live state while no Python runs; False: this Python cannot."""
    layout = (SIZE_BYTES, BEAT_NS, STARVED_NS, STACKS_NS, STACKS)
    return bool(load_kernels().watch_starvation(os.fspath(path), *layout))


def _fail(hook: Hook, why: str) -> None:
    hook.fail(RuntimeError(why.partition("\n")[0]))  # the rest is a backtrace of C++


def has_kernels(interception: str) -> bool:
    """Tell whether kernels in C++ are to be used, and load them.

    Raises:
        RuntimeError: they are asked for and not built, or are there and cannot be loaded.
    """
    if interception == "native" or (interception == "auto" and _are_built()):
        load_kernels()
        return True
    return False


def _are_built() -> bool:
    try:
        return os.path.exists(kernels_path())
    except RuntimeError:
        return False


def kernels_path() -> Path:
    """Return where the kernels for this torch and this Python are once they have been built.

    It is the folder that torch has for extensions.

    Raises:
        RuntimeError: there is none, because this user has no home.
    """
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or _user_cache() / "torch_extensions"
    suffix = EXTENSION_SUFFIXES[0]
    fits = (torch.__version__, torch.version.git_version, suffix)
    code = b"".join(source.read_bytes() for source in SOURCES)
    digest = hashlib.blake2b(code + repr(fits).encode(), digest_size=6)
    return Path(root).absolute() / f"{MODULE}_{digest.hexdigest()}{suffix}"


def _user_cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else Path.home() / ".cache"


def seal(library: bytes) -> bytes:
    """Return what ends a file of kernels: the digest of what was built."""
    return _SEAL + hashlib.blake2b(library, digest_size=16).hexdigest().encode()


def is_sealed(data: bytes) -> bool:
    """Say whether a file of kernels is what was built: not cut off, and not changed since."""
    library = data[: data.rfind(_SEAL)]
    return data == library + seal(library)


def load_kernels() -> ModuleType:
    """Load the kernels for this torch.

    Raises:
        RuntimeError: they have not been built, or cannot be loaded.
    """
    path = kernels_path()
    if not os.path.exists(path):  # Path.exists raises where a folder may not be read
        raise RuntimeError(
            f"no kernels are built for torch {torch.__version__} ({path} is missing), kernels "
            "in Python are used; run dsprof build"
        )
    return _loaded(path)


@functools.cache
def _loaded(path: Path) -> ModuleType:
    if why := why_untrusted(path):
        raise RuntimeError(
            f"{path} is not loaded because {why}, kernels in Python are used; set "
            "TORCH_EXTENSIONS_DIR to a folder that only you can write and run dsprof build"
        )
    if not is_sealed(path.read_bytes()):
        raise RuntimeError(
            f"{path} is truncated or changed, kernels in Python are used; run dsprof build"
        )
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_loader(MODULE, loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise RuntimeError(f"{error}, kernels in Python are used; run dsprof build") from None
    return module
