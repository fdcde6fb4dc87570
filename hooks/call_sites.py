"""Call sites: the first Python frame outside torch, deepspeed and dsprof, interned."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType

from dsprof.recording.recorder.hot_state import compiled
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Site

_PASSED_OVER = (
    *("torch", "deepspeed", "dsprof", "accelerate", "transformers"),
    *("contextlib", "functools", "threading", "typing_extensions"),  # what they wrap calls with
)

LOOK_EVERY = 17
"""Every so many calls the whole stack is walked, whatever is known of it.

A prime: with a step of 8 or 16 collectives it would otherwise be the same ones each time.
"""

_HEIGHTS = 4
"""This many frames of a path are looked at before the whole stack is."""

_MOST_FRAMES = 1000


class KnownSites:
    """Which call site is above a call, from the frames that a walk up the stack has found it by.

    A walk makes an object of each frame that it looks at, which is most of its cost. So it is
    remembered how far up sites were for a path through the libraries, known by the code positions
    of two of its frames: only those frames are looked at, the nearest first. Every so often a walk
    checks that, and learns how far up sites are, too.
    """

    def __init__(self, look_every: int) -> None:
        self._heights: dict[tuple[int, int], tuple[int, ...]] = {}  # of sites on a path, ascending
        # By identity of the code, and position in it: the code, and the site; 0: in a library.
        self._frames: dict[tuple[int, int], tuple[CodeType, int]] = {}
        self._are_looks = itertools.cycle([True, *[False] * (look_every - 1)])

    def find(self, depth: int) -> int:
        """Return the site for `Sites.above`; 0: it has to be looked for."""
        frame_at = sys._getframe
        try:
            path = (frame_at(depth + 5).f_lasti, frame_at(depth + 9).f_lasti)
            heights = self._heights.get(path, ())
            if not heights or next(self._are_looks):
                return 0
            for height in heights:
                frame = frame_at(depth + 1 + height)
                site = self._frames[id(frame.f_code), frame.f_lasti][1]
                if site:
                    return site
        except (KeyError, ValueError):  # a new site, or a short stack
            pass
        return 0

    def learn(self, depth: int, height: int, site: int) -> None:
        """Note how far up `Sites.look_above` has found a site."""
        frame_at = sys._getframe
        try:
            path = (frame_at(depth + 5).f_lasti, frame_at(depth + 9).f_lasti)
        except ValueError:
            return
        heights = tuple(sorted({*self._heights.get(path, ()), height}))[:_HEIGHTS]
        self._heights[path] = heights
        if len(self._frames) >= _MOST_FRAMES:
            self._frames.clear()
        for each in heights:
            if each <= height:
                frame = frame_at(depth + 1 + each)
                here = site if each == height else 0
                self._frames[id(frame.f_code), frame.f_lasti] = (frame.f_code, here)

    def clear(self) -> None:
        """Forget all sites."""
        self._heights.clear()
        self._frames.clear()


make_known_sites = KnownSites if compiled is None else compiled.KnownSites


class Sites:
    """Finds and numbers call sites, for all hooks of a recorder.

    A file is looked at once: `_files` maps its name to None when it is skipped, else to
    its known sites by code position. The line of a position is computed for new sites only.

    Any thread that communicates or trains touches it, without a lock: a dict's get and set are one
    step each, and a site that two threads find at once has two numbers, both defined.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._outbox, self._ids = recorder.outbox, itertools.count(1)
        self._files: dict[str, dict[int, int] | None] = {}
        self._inner = tuple(_inner_paths())
        self.known: KnownSites = make_known_sites(LOOK_EVERY)
        recorder.trace_listeners.append(self._forget)

    def above(self, depth: int) -> int:
        """Return the number of the site of a call, 0 if there is none.

        The call was issued that many frames above the caller of this function.
        """
        return self.known.find(depth) or self.look_above(depth + 1)

    def look_above(self, depth: int) -> int:
        """Return the same as `above`, by a walk up the stack."""
        files = self._files
        try:
            frame: FrameType | None = sys._getframe(depth + 1)
        except ValueError:  # in a thread of C++ the call has no frame at all
            return 0
        site, seen = self._walk(frame)
        if site and files is self._files:  # else another thread has begun a new trace
            self.known.learn(depth, seen + 1, site)
        return site

    def here(self) -> int:
        """Return the number of the site from which the caller was called, however far up."""
        return self._walk(sys._getframe().f_back)[0]  # no frame: C++ called, through C

    def _forget(self) -> None:
        """Define all sites again, in a new trace."""
        self._files = {}
        self.known.clear()

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
