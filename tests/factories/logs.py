"""Writes logs as NCCL, torch and DeepSpeed do, and reads them back through the reader."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dsprof.trace.rank_log import RankLog
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.logs import LogReader

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total "
    "capacity of 80.00 GiB of which {free} is free. {others}Including non-PyTorch memory, this "
    "process has {process} memory in use. Of the allocated memory {allocated} is allocated by "
    "PyTorch, and {unallocated} is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)

OLD_OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 64.00 MiB (GPU 0; 80.00 GiB total "
    "capacity; {allocated} already allocated; 200.00 MiB free; {reserved} reserved in total by "
    "PyTorch)"
)
"""What torch 1.8 to 2.0 write."""


def said(message: str, rank: int = 0, host: str = "", level: str = "INFO") -> str:
    """A line of NCCL from a rank of two to a host."""
    process = f"{host or f'node{rank // 2}'}:{1000 + rank}:{1000 + rank}"
    return f"{process} [{rank % 2}] NCCL {level} {message}"


def ready(rank: int, of: int = 4, host: str = "") -> str:
    """The line that says which rank a process is."""
    return said(
        f"comm 0x7f{rank:04x} rank {rank} nranks {of} cudaDev {rank % 2} nvmlDev {rank % 2} "
        f"busId {rank % 2 + 1}000 commId 0x1 - Init COMPLETE",
        rank,
        host,
    )


def every(message: str, ranks: int = 4, level: str = "INFO") -> list[str]:
    """A line of each rank."""
    return [said(message, rank, level=level) for rank in range(ranks)]


def run(*lines: str | Sequence[str], ranks: int = 4) -> list[str]:
    """The log of a run whose ranks are all known."""
    flat = [one for line in lines for one in ([line] if isinstance(line, str) else line)]
    return [*flat, *(ready(rank, ranks) for rank in range(ranks))]


def out_of_memory(
    asked: str = "1.00 GiB",
    free: str = "100.00 MiB",
    allocated: str = "78.00 GiB",
    unallocated: str = "200.00 MiB",
    process: str = "79.00 GiB",
    others: str = "",
) -> str:
    """What torch 2.1 and later write."""
    return OOM.format(
        asked=asked,
        free=free,
        allocated=allocated,
        unallocated=unallocated,
        process=process,
        others=others,
    )


def call(op: str, ms: float, size: str = "1.0 MB", algbw: float = 1.0, busbw: float = 0.75) -> str:
    """A verbose line of DeepSpeed's comms_logger."""
    return (
        f"[2026-01-01 00:00:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] comm op: {op} | "
        f"time (ms): {ms:.2f} | msg size: {size} | algbw (Gbps): {algbw:.2f} | "
        f"busbw (Gbps): {busbw:.2f}"
    )


def table(op: str, *rows: tuple[str, int, float, float, float, float]) -> list[str]:
    """The table of `log_summary` for one operation."""
    names = ("Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)")
    head = "".join(f"{name: <20}" for name in (*names, "tput_avg (Gbps)", "busbw_avg (Gbps)"))
    cells = (" " * 20 + "".join(f"{cell!s: <20}" for cell in row) for row in rows)
    return [head, op, *cells]


def read(lines: Sequence[str] | bytes, name: str = "train.log") -> list[RankTrace]:
    """The ranks of a log."""
    data = lines if isinstance(lines, bytes) else "\n".join([*lines, ""]).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        return list(LogReader().read_traces(path))


def log_of(lines: Sequence[str] | bytes) -> RankLog:
    """What lines say of a rank, which is the only one."""
    [trace] = read(lines)
    assert trace.log is not None
    return trace.log


def telling(facts: Mapping[str, str]) -> RankLog:
    """A log that states facts of a rank, by their kind."""
    log = RankLog()
    for kind, value in facts.items():
        log.say(kind, value)
    return log
