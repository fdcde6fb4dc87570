"""Call sites: the first Python frame outside torch, deepspeed and dsprof, interned."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Site

_PASSED_OVER = (
    *("torch", "deepspeed", "dsprof", "accelerate", "transformers"),
    *("contextlib", "functools", "threading", "typing_extensions"),  # what they wrap calls with
)

_HEIGHTS = 4
"""So many frames are looked at before the whole stack is."""

LOOK_EVERY = 17
"""Every so many calls the whole stack is walked, whatever is known of it.

A prime: with a step of 8 or 16 collectives it would otherwise be the same ones each time.
"""


class Sites:
    """Finds and numbers call sites, for all hooks of a recorder.

    A walk up the stack makes an object of each frame that it looks at, which is most of its cost.
    So it is remembered how far up sites were for a path through the libraries, known by the code
    positions of two of its frames: only those frames are looked at, the nearest first. Every so
    often a walk checks that, and learns how far up sites are, too.

    A file is looked at once: `_files` maps its name to None when it is skipped, else to
    its known sites by code position. The line of a position is computed for new sites only.

    Any thread that communicates or trains touches it, without a lock: a dict's get and set are one
    step each, and a site that two threads find at once has two numbers, both defined.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._outbox, self._ids = recorder.outbox, itertools.count(1)
        self._files: dict[str, dict[int, int] | None] = {}
        self._inner = tuple(_inner_paths())
        self._heights: dict[tuple[int, int], tuple[int, ...]] = {}  # of sites on a path, ascending
        self._are_looks = itertools.cycle([True, *[False] * (LOOK_EVERY - 1)])
        self.above = self._finder()
        """Return the number of the site of a call, 0 if there is none.

        The call was issued that many frames above the caller of this function.
        """
        recorder.trace_listeners.append(self._forget)

    def _finder(self) -> Callable[[int], int]:
        """Return `above`; a closure, because it runs for each collective."""
        files, heights, walk = self._files, self._heights, self._walk
        frame_at, next_is_look = sys._getframe, self._are_looks.__next__

        def above(depth: int) -> int:
            try:
                path = (frame_at(depth + 4).f_lasti, frame_at(depth + 8).f_lasti)
            except ValueError:  # a short stack; in a thread of C++ the call has no frame at all
                return walk(_ancestor(frame_at(), depth + 1))[0]
            known = heights.get(path, ())
            if known and not next_is_look():
                try:
                    for height in known:
                        frame = frame_at(depth + height)
                        code = frame.f_code
                        sites = files[code.co_filename]
                        if sites is not None:
                            return sites[code.co_firstlineno << 24 | frame.f_lasti]
                except (KeyError, ValueError):  # a new site, or a shorter stack
                    pass
            site, seen = walk(frame_at(depth + 1))
            if site and seen + 1 not in known:
                heights[path] = tuple(sorted((*known, seen + 1)))[:_HEIGHTS]
            return site

        return above

    def here(self) -> int:
        """Return the number of the site from which the caller was called, however far up."""
        return self._walk(sys._getframe().f_back)[0]  # no frame: C++ called, through C

    def _forget(self) -> None:
        """Define all sites again, in a new trace."""
        self._files.clear()
        self._heights.clear()

    def _walk(self, frame: FrameType | None) -> tuple[int, int]:
        """Return the number of the first site from `frame` upwards, and how far up it is."""
        height = 0
        while frame is not None:
            code = frame.f_code
            filename = code.co_filename
            if filename not in self._files:
                self._files[filename] = None if filename.startswith(self._inner) else {}
            sites = self._files[filename]
            if sites is not None:
                position = code.co_firstlineno << 24 | frame.f_lasti
                return sites.get(position) or self._define(sites, position, frame), height
            frame = frame.f_back
            height += 1
        return 0, 0

    def _define(self, sites: dict[int, int], position: int, frame: FrameType) -> int:
        number = sites[position] = next(self._ids)
        code = frame.f_code
        site = Site(number, code.co_filename, frame.f_lineno, code.co_name)
        self._outbox.define(site)
        return number


def _ancestor(frame: FrameType | None, depth: int) -> FrameType | None:
    for _ in range(depth):
        frame = frame.f_back if frame is not None else None
    return frame


def _inner_paths() -> Iterator[str]:
    """Yield the beginnings of file names that are no call sites."""
    yield "<"
    yield os.path.dirname(__file__) + os.sep
    for name in _PASSED_OVER:
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # somebody's stand-in
            continue
        if spec is None:
            continue
        if spec.submodule_search_locations is None:
            yield spec.origin or "<"
        else:
            # As paths, too: transformers builds its own.
            yield from (os.fspath(one) + os.sep for one in spec.submodule_search_locations)
