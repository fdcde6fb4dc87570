"""Reads step times that a training script printed, one file a rank.

# step times of rank 0 of 2, ms
120.5
14.2
"""

from __future__ import annotations

import re
from pathlib import Path

from dsprof.api import (
    CollectivesBuilder,
    Facts,
    Header,
    OneRankReader,
    RankTrace,
    Reader,
    Step,
    TraceError,
    Trailer,
)

_HEAD = re.compile(rb"# step times of rank (\d{1,6}) of (\d{1,6}), ms\n")
_LARGEST_BYTES = 1 << 24


class StepTimesReader(OneRankReader):
    """Knows nothing but the length of steps: they follow each other without a pause."""

    name = "step times"
    tells = Facts.TIMELINE
    order = 1000

    def recognises(self, start: bytes) -> bool:
        """Say whether the first line is the head."""
        return _HEAD.match(start) is not None

    def read_header(self, path: Path) -> Header:
        """Read the head."""
        with path.open("rb") as file:
            head = _HEAD.match(file.readline(100))
        if head is None:
            raise TraceError(f"{path}: the first line is not that of step times")
        return Header(
            schema_version=1,
            run_key="",
            rank=int(head[1]),
            world_size=int(head[2]),
            host="",
            pid=0,
            started_epoch_ns=0,
            started_monotonic_ns=0,
        )

    def read_trace(self, path: Path) -> RankTrace:
        """Read the steps; lines that are no numbers are counted."""
        trace = RankTrace(str(path), self.read_header(path), CollectivesBuilder().build())
        if path.stat().st_size > _LARGEST_BYTES:
            raise TraceError(f"{path}: larger than 16 MiB")
        end_ns = 0
        for line in path.read_text("utf-8", errors="replace").splitlines()[1:]:
            if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", line):
                trace.broken_lines += 1
                continue
            start_ns, end_ns = end_ns, end_ns + round(float(line) * 1e6)
            trace.steps.append(Step(len(trace.steps), start_ns, end_ns))
        trace.trailer = Trailer(reason="exit")
        return trace


READER: Reader = StepTimesReader()
