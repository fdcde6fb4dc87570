"""A training loop with a window of torch.profiler."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.profiler import ProfilerActivity

from dsprof.recording.capture.profiler import writing
from dsprof.recording.capture.profiler.window import ProfilerWindow
from dsprof.recording.recorder.redacted_records import Redaction
from dsprof.trace.lines import LINES
from dsprof.trace.schema import Header, Note

CPU = [ProfilerActivity.CPU]


class Run:
    """A training loop with a window."""

    def __init__(self, folder: Path) -> None:
        self.notes: list[str] = []
        self.failures: list[BaseException] = []
        self.window = ProfilerWindow(self._note, lambda _, error: self.failures.append(error))
        self.path = folder / "trace.1.rank00003.profile.gz"
        header = Header(1, "run", 3, 4, "host", os.getpid(), 0, 0, backend="gloo")
        trace = folder / "trace.1.rank00003.json"
        write_start(trace, header)
        self._begin = partial(self.window.begin, header, lambda: trace, Redaction(None))
        self.begin_world()

    def begin_world(self) -> None:
        """Begin, or recreate the default process group."""
        self._begin()
        self.step = 0

    def _note(self, note: Note) -> None:
        self.notes.append(note.text)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            torch.ones(3).add_(self.step)
            self.window.end_step(self.step)
            self.step += 1

    def train_until_it_ends(self, *, within_a_step: bool) -> None:
        self.train(1)
        if within_a_step:
            self.wait_until_it_ends()
        while self.is_open():
            self.train(1)

    def wait_until_it_ends(self) -> None:
        """Run Python code, between whose instructions it may end."""
        while self.is_open():
            torch.ones(3)

    def end(self) -> list[str]:
        """Return the names of the operators that were written."""
        self.window.close()
        assert not self.failures
        return names_in(self.path) if self.path.exists() else []

    def is_open(self) -> bool:
        return bool(self.window._profile)

    def wait_until_written(self) -> None:
        """Wait for the thread of a window that has ended."""
        assert self.window._writer is not None
        self.window._writer.join()


def write_start(trace: Path, header: Header) -> None:
    line = msgspec.json.encode(LINES["header"](header, ph="M", pid=header.rank))
    trace.write_bytes(b"[\n" + line + b",\n")


def names_in(path: Path) -> list[str]:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event["name"] for event in events]


def in_backward(do: Callable[[], Any]) -> None:
    """Do this in a hook of autograd, in the main thread."""
    leaf = torch.ones(3, requires_grad=True)
    leaf.register_hook(lambda _: (do(), None)[1])
    with torch.enable_grad():
        leaf.sum().backward()


def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(writing, "_MOST_S", 1e9)  # on a slow machine 10 s pass by
    monkeypatch.setattr(writing, "_MOST_GROWTH_BYTES", 1 << 40)
    run = Run(tmp_path)
    yield run
    run.window.close()
