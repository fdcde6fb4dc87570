"""Records that tell an order and no times: what execution traces and Chakra graphs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsprof.errors import TraceError
from dsprof.trace.readers.base import Facts, OneRankReader
from dsprof.trace.schema import LARGEST_WORLD, SCHEMA_VERSION, Header

_LARGEST_PID = 1 << 32


class GraphReader(OneRankReader):
    """Reads the file of one rank; who is said nowhere but in what lies anywhere in it."""

    tells = Facts.TIMELINE

    def read_header(self, path: Path) -> Header:
        """Read the whole file.

        Raises:
            TraceError: the file cannot be read.
        """
        return self.read_trace(path).header


def graph_header(
    path: Path, run_key: str, rank: int, world_size: int, pid: object, **fields: Any
) -> Header:
    """Return the header of one rank; `fields` are the others that the record tells.

    Raises:
        TraceError: there can be no such rank.
    """
    if not rank < LARGEST_WORLD or world_size > LARGEST_WORLD:
        raise TraceError(
            f"{path}: invalid rank {rank} for world size {world_size}: the file is damaged"
        )
    defaults: dict[str, Any] = {"started_epoch_ns": 0, "device": ""}
    return Header(
        schema_version=SCHEMA_VERSION,
        run_key=run_key,
        rank=rank,
        world_size=world_size,
        host="",
        pid=pid if isinstance(pid, int) and 0 <= pid < _LARGEST_PID else 0,
        started_monotonic_ns=0,
        **(defaults | fields),
    )
