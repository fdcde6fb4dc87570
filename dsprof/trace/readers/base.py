"""Readers: each knows a kind of file by its content, and turns one into `RankTrace`s."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import Flag
from pathlib import Path
from typing import Any, Protocol

from dsprof.errors import TraceError
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import LARGEST_WORLD, SCHEMA_VERSION, Header

START_BYTES = 1 << 16
"""How much of a file `recognises` is shown."""

_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,7})(?!\d)", re.I)


def rank_in_name(path: Path) -> int:
    """Return the rank in the name of a file (`rank3.pkl`, `trace_rank_3`), -1 if there is none."""
    named = _RANK_IN_NAME.search(path.name)
    rank = int(named[1]) if named else -1
    return rank if rank < LARGEST_WORLD else -1  # the number of a job, or of a process


def foreign_header(path: Path, run_key: str, rank: int, world_size: int = 0, **told: Any) -> Header:
    """Return the header of one rank; `told` are the other fields that a file of another tool tells.

    Raises:
        TraceError: there can be no such rank.
    """
    if rank >= LARGEST_WORLD or world_size > LARGEST_WORLD:
        raise TraceError(
            f"{path}: invalid rank {rank} for world size {world_size}: the file is damaged"
        )
    untold = {"host": "", "pid": 0, "started_epoch_ns": 0, "started_monotonic_ns": 0, "device": ""}
    fields: dict[str, Any] = {**untold, **told}
    return Header(SCHEMA_VERSION, run_key, rank, world_size, **fields)


class Facts(Flag):
    """Contents of a kind of file on a rank.

    Files that tell different facts of a rank are joined. Of two that tell the same only one is
    read, so that nothing counts twice: that of the earlier reader. Only logs add up.
    """

    TIMELINE = 1  # what happened when
    DEVICE = 2  # what an accelerator did
    FLIGHT = 4  # which collectives were in flight
    SNAPSHOT = 8  # how device memory is laid out
    LOG = 16  # what was logged


class Reader(Protocol):
    """Reads one kind of file in bounded memory."""

    name: str  # what the files are called, for messages
    tells: Facts  # contents; of two files of a rank that tell the same only one is read
    order: int  # the lower is asked first; plugins after all that is built in

    def recognises(self, start: bytes) -> bool:
        """Say whether a file that begins with `start` is of this kind; its name plays no part."""
        ...

    def read_headers(self, path: Path) -> Sequence[Header]:
        """Return the headers of the ranks in the file, reading as little as possible.

        A `world_size` of 0 means that the file does not say it, a `started_monotonic_ns` of 0 that
        it holds no times to align.

        Raises:
            TraceError: it cannot be read.
        """
        ...

    def read_traces(self, path: Path) -> Iterable[RankTrace]:
        """Read the file, one trace a rank, in the parts of `RankTrace` that it knows.

        Raises:
            TraceError: it cannot be read.
        """
        ...


class OneRankReader(ABC):
    """A reader of files that are each of one rank."""

    def read_header(self, path: Path) -> Header:
        """Return the header of the file; read as little as possible where part of it tells.

        Raises:
            TraceError: it cannot be read.
        """
        return self.read_trace(path).header

    @abstractmethod
    def read_trace(self, path: Path) -> RankTrace:
        """Read the file.

        Raises:
            TraceError: it cannot be read.
        """

    def read_headers(self, path: Path) -> Sequence[Header]:
        return [self.read_header(path)]

    def read_traces(self, path: Path) -> Iterable[RankTrace]:
        return [self.read_trace(path)]
