"""Kernels in the dispatcher that are C++: what they pass on costs a fifth of what Python takes.

`dsprof build` compiles them once for the torch that is installed (`dsprof.hooks.native_build`); a
training process compiles nothing. They see what the kernels in Python see, and have the record
made by the same function.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import Any

import torch

from dsprof.hooks.base import hide_from_dynamo
from dsprof.hooks.c10d import DispatcherHook, is_traced, positions
from dsprof.hooks.functional import WAIT, FunctionalHook
from dsprof.hooks.interception import CompleteHook
from dsprof.hooks.wire import WireOp

MODULE = "dsprof_kernels"
SOURCE = Path(__file__).with_name("kernels.cpp")


class NativeDispatcherHook(DispatcherHook):
    """Sees collectives in the dispatcher by kernels in C++."""

    def _open(self) -> Any:
        return load(library()).Kernels("c10d")

    def _add(self, name: str, op: WireOp) -> None:
        at = positions(getattr(torch.ops.c10d, name).default._schema)
        self._library.add_collective(name, at, *self._halves(op))

    def _halves(self, op: WireOp) -> tuple[Callable[[], bool], Callable[..., None]]:
        """Return what a kernel calls before it passes a collective on, and after that."""
        recorder, note, sized = self.recorder, self.make_note(op, None), op.sized
        in_flight, announced = recorder.in_flight, recorder.announced
        noted_below = recorder.noted_below

        def begin() -> bool:
            is_announced = announced and get_ident() in announced
            if is_announced or (not recorder.recording and not recorder.arm()):
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

    kernels = NativeDispatcherHook


class NativeFunctionalHook(FunctionalHook):
    """Times `wait_tensor` by a kernel in C++."""

    def _time_waits(self) -> Any:
        recorder, in_flight = self.recorder, self.recorder.in_flight

        def begin(tensor: torch.Tensor) -> Any:
            if not recorder.recording or self.broken or is_traced(tensor):
                return False
            return in_flight.device.open() if in_flight.device is not None else None

        hide_from_dynamo(begin)
        hide_from_dynamo(FunctionalHook._waited, and_calls=True)
        namespace, operation = WAIT
        kernels = load(library()).Kernels(namespace)
        kernels.add_wait(operation, begin, self._waited)
        return kernels


def library() -> Path:
    """Return where the kernels for this torch and this Python are once they have been built.

    Below the folder that torch has for extensions: TORCH_EXTENSIONS_DIR, or the user's cache.
    """
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    fits = (torch.__version__, torch.version.git_version, suffix)
    digest = hashlib.blake2b(SOURCE.read_bytes(), digest_size=6)
    digest.update(repr(fits).encode())
    return Path(root) / f"{MODULE}_{digest.hexdigest()}{suffix}"


@functools.cache
def load(path: Path) -> ModuleType:
    """Load the kernels.

    Raises:
        RuntimeError: they have not been built, or cannot be loaded.
    """
    if not path.exists():
        raise RuntimeError(
            f"its kernels are not built for torch {torch.__version__} ({path} is missing); "
            "run `dsprof build`, until then kernels in Python stand in"
        )
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_loader(MODULE, loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise RuntimeError(f"{error}; remove {path} and run `dsprof build`") from None
    return module
