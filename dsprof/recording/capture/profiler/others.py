"""Other profilers of this process: none begins while ours is active, and ours not beside them.

Torch profiles one thread of a process at a time. Two profilers on one thread raise; two on
different threads crash the process.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any

from dsprof.hooks.patching import Patch, PatchSet, Wrap

_PROFILER, _LEGACY = "torch.autograd.profiler", "torch.autograd.profiler_legacy"
_BEGIN = (
    (_PROFILER, "_prepare_profiler"),
    (_PROFILER, "_enable_profiler"),
    (_LEGACY, "_enable_profiler_legacy"),
)
_END = ((_PROFILER, "_disable_profiler"), (_LEGACY, "_disable_profiler_legacy"))
_FROM_OUTSIDE = ("KINETO_USE_DAEMON", "NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH")
"""Variables by which a profiler is attached that Python does not see."""


class OtherProfilers:
    """Follows them by what torch's Python code calls, from `install` to `remove`."""

    def __init__(self, is_ours: Callable[[], bool], give_way: Callable[[], None]) -> None:
        """`is_ours` says whether a call comes from our own profiler.

        `give_way` ends ours; it raises where that is not possible.
        """
        self._is_ours, self._give_way = is_ours, give_way
        self._threads: set[int] = set()  # that have begun one
        self._patches = PatchSet()

    def install(self) -> None:
        """Begin to look.

        Raises:
            AttributeError: this release of torch has other functions.
        """
        self._patches.apply(
            [*_patches(_BEGIN, self._around_begin), *_patches(_END, self._around_end)]
        )

    def remove(self) -> None:
        """Put torch's functions back."""
        self._patches.revert()

    def are_active(self) -> bool:
        """Say whether one is active, or prepared; asked in the main thread."""
        begun = self._threads or sys.modules[_PROFILER]._is_profiler_enabled
        # One that began before `install`, or in C++.
        is_here = sys.modules["torch"].autograd._profiler_enabled()
        return bool(begun or is_here or any(os.environ.get(name) for name in _FROM_OUTSIDE))

    def _around_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def begin(*args: Any, **kwargs: Any) -> Any:
            if self._is_ours():
                return original(*args, **kwargs)
            self._threads.add(get_ident())  # first: then ours does not begin any more
            try:
                self._give_way()
                return original(*args, **kwargs)
            except BaseException:
                self._threads.discard(get_ident())
                raise

        return begin

    def _around_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                if not self._is_ours():  # else it gives way to one that begins
                    self._threads.discard(get_ident())

        return end


def _patches(names: Iterable[tuple[str, str]], wrap: Wrap) -> list[Patch]:
    """Patch what this release of torch has; it may end the legacy profiler."""
    return [
        Patch(sys.modules[module], name, wrap)
        for module, name in names
        if module == _PROFILER or hasattr(sys.modules.get(module), name)
    ]
