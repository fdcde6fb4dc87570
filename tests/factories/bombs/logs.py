"""Logs of a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.factories import logs
from tests.factories.bombs.cases import MIB, case, count, file, packed, repeated

FIRST = logs.said("Bootstrap : Using eth0:10.0.0.1<0>").encode() + b"\n"
LINES: dict[str, str] = {
    "hosts": "host#:#:# [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    "ready": "h#:#:# [0] NCCL INFO comm 0x7f rank # nranks 1000000 cudaDev 0 busId 1 - "
    "Init COMPLETE",
    "launched": "[rank#]: h#:#:# [0] NCCL INFO Using network IB",
    "mpi": "[1,#]<stdout>: h:1:1 [0] NCCL WARN something # happened",
    "tasks": "#: DeepSpeed info: version=0.19.8, git-hash=x Overflow detected #",
    "comms": "[rank#]: comm op: all_reduce | time (ms): 1.0 | msg size: # B | algbw (Gbps): 1.0 | "
    "busbw (Gbps): 0.75",
    "names": "comm op: op_# | time (ms): 1.0 | msg size: # B | algbw (Gbps): 1.0 | "
    "busbw (Gbps): 0.75",
    "warnings": "h:1:1 [0] NCCL WARN " + "#" * 30,
    "variables": "h:1:1 [0] NCCL INFO NCCL_# set by environment to #.",
    "memory": "[rank#]: " + logs.out_of_memory(asked="#.00 GiB"),
    "places": "h:1:1 [0] NCCL INFO comm 0x7f rank 1 nranks # cudaDev 0 busId 1 - Init COMPLETE",
    "timeouts": "[rank#]: [Rank #] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=#, "
    "OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=6) ran for 60 milliseconds",
    "elastic": "  rank      : # (local_rank: 0)",
    "benchmark": "# Rank # Pid 1 on host# device 0 [0x00] NVIDIA A100",
    "samples": "[rank#]: global_step=#, RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec=1.0, "
    "MemAllocated=1GB, MaxMemAllocated=1GB",
    "errors": "[rank#]: NCCL error in: x.cpp:1, unhandled system error #, NCCL version 2",
}


def _numbered_lines(text: str, number: int) -> Iterator[bytes]:
    yield FIRST
    for start in range(1, number, 10_000):
        block = range(start, min(number, start + 10_000))
        yield "".join(text.replace("#", str(i)) + "\n" for i in block).encode()


for word, text in LINES.items():
    file("log", f"{word}.log", lambda s, text=text: _numbered_lines(text, count(300_000, s)))
    file(
        "log",
        f"{word}.log.gz",
        lambda s, text=text: packed(_numbered_lines(text, count(300_000, s))),
    )
PIECES = [
    *(b"[rank1]: ", b"[1,1]<stdout>: ", b"> ", b"2026-01-01 ", b"a: ", b"(x pid=1) ", b"9", b" "),
    *(b"a", b"a:1:", b"[", b"NCCL INFO ", b"NCCL WARN ", b"comm op: a", b"comm op: ", b" | ", b"-"),
    *(b"\t", b"\x1b[", b"\r", b"\0", b"\xff", b"NET/OFI ", b"via NET/", b"[0]mlx5_0:1/IB ", b"."),
    *(b"ALLOC_CONF=", b"out of memory. Tried to allocate ", b"1.0 GiB ", b"Process 1 has "),
    *(b"atchdog caught collective ", b"Rank 1 Pid 1 on ", b"# ", b"algbw busbw ", b"json = {"),
    *(b'{"a":', b"SamplesPerSec=", b"NCCL error in: ", b"fi_getinfo: provider "),
    *(b"x" * 255 + b":", b"1" * 300 + b":"),
]
OF_NCCL = b"h:1:1 [0] NCCL INFO "
HEADS = [
    *(b"", b"NCCL INFO ", b"comm op: ", b"out of memory. Tried to allocate ", b"[rank1]: atchdog "),
    *(OF_NCCL + b"NET/OFI ", OF_NCCL + b"Plugin ", OF_NCCL + b"NET/IB : Using "),
    OF_NCCL + b"comm 0x1 rank 1 nranks 2 cudaDev 1",
]


@case("log", "expressions")
def _slow_lines(folder: Path, scale: float) -> None:
    """Lines that repeat what an expression repeats: each is as long as lines are read."""
    for number, head in enumerate(HEADS):
        lines = [
            before + head + piece * (count(70_000, min(1, 20 * scale)) // len(piece)) + after
            for piece in PIECES
            for before in (b"", b"NCCL ")
            for after in (b"", b" NCCL INFO x", b"!")
        ]
        (folder / f"lines{number}.log").write_bytes(FIRST + b"\n".join(lines))


@case("log", "one line")
def _long_lines(folder: Path, scale: float) -> None:
    for number, piece in enumerate(PIECES):
        with (folder / f"long{number}.log").open("wb") as out:
            out.writelines(repeated(FIRST, piece, count(10 * MIB, scale) // len(piece)))
