"""Calling sites: the first Python frame outside torch, deepspeed and dsprof, interned."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from types import FrameType

from dsprof.recorder import Recorder
from dsprof.trace.format import SiteArgs

_PASSED_OVER = (
    *("torch", "deepspeed", "dsprof", "accelerate", "transformers"),
    *("contextlib", "functools", "threading", "typing_extensions"),  # what they wrap calls with
)


class Sites:
    """Finds and numbers calling sites.

    A file is looked at once: `_files` maps its name to None when it is to be passed over, else to
    its known sites by code position. The line of a position is computed for new sites only.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._files: dict[str, dict[int, int] | None] = {}
        self._inner = tuple(_inner_paths())

    def of(self, frame: FrameType | None) -> int:
        """Return the number of the site that `frame` was called from, 0 if there is none."""
        files = self._files
        try:
            while (sites := files[frame.f_code.co_filename]) is None:  # type: ignore[union-attr]
                frame = frame.f_back  # type: ignore[union-attr]
        except KeyError:
            assert frame is not None
            filename = frame.f_code.co_filename
            files[filename] = self._classify(filename)
            return self.of(frame)
        except AttributeError:  # the end of the stack: testing for it costs at each frame
            return 0
        assert frame is not None
        position = frame.f_code.co_firstlineno << 24 | frame.f_lasti
        return sites.get(position) or self._define(sites, position, frame)

    def _classify(self, filename: str) -> dict[int, int] | None:
        is_inner = filename.startswith(self._inner)
        return None if is_inner else {}

    def _define(self, sites: dict[int, int], position: int, frame: FrameType) -> int:
        number = sites[position] = next(self._recorder.site_ids)
        code = frame.f_code
        site = SiteArgs(number, code.co_filename, frame.f_lineno, code.co_name)
        self._recorder.define(site)
        return number


def _inner_paths() -> Iterator[str]:
    """Yield how the names of files begin that are no calling sites."""
    yield "<"
    yield os.path.dirname(__file__) + os.sep
    for name in _PASSED_OVER:
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        if spec.submodule_search_locations is None:
            yield spec.origin or "<"
        else:
            yield from (folder + os.sep for folder in spec.submodule_search_locations)
