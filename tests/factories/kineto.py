"""Writes what torch.profiler exports, in as few words as a test needs. Times are in ms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START_US = 1_700_000_000_000_000.0
"""When the recording begins: microseconds since the epoch, as in files without a base."""

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
GEMM = "ampere_sgemm_128x64_tn"


def span(category: str, name: str, at: float, took: float, **fields: Any) -> dict[str, Any]:
    """A complete event of any kind."""
    event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "args": {}}
    return event | {"ts": START_US + at * 1000, "dur": took * 1000} | fields


def kernel(name: str, at: float, took: float, stream: int = 7, **args: Any) -> dict[str, Any]:
    """A kernel on a stream."""
    return span("kernel", name, at, took, tid=stream, args={"stream": stream, **args})


def collective(
    at: float, took: float, op: str = "allreduce", elements: int = 1 << 20, **args: Any
) -> dict[str, Any]:
    """A kernel of NCCL with what recent profilers say about it."""
    given = {
        "Collective name": op,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "dtype": "BFloat16",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]",
    }
    return kernel(args.pop("name", NCCL), at, took, args.pop("stream", 20), **(given | args))


def issued(number: int, at: float, op: str = "allreduce", **args: Any) -> dict[str, Any]:
    """What torch records of a call of NCCL's process group."""
    told = collective(at, 1, op)["args"] | {"External id": number, **args}
    return span("cpu_op", "record_param_comms", at, 0.1, args=told)


def gloo(op: str, at: float, shapes: object, kind: str = "float") -> dict[str, Any]:
    """A span of a backend on CPUs, with shapes recorded."""
    told = {"Input Dims": shapes, "Input type": [kind]}
    return span("user_annotation", f"gloo:{op}", at, 1, args=told)


def copy(at: float, took: float, stream: int = 7) -> dict[str, Any]:
    return span("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at, took, args={"stream": stream})


def step(number: int, at: float, took: float) -> dict[str, Any]:
    return span("user_annotation", f"ProfilerStep#{number}", at, took)


def of_process(pid: int) -> dict[str, Any]:
    """A call of the host, which bears the number of its process."""
    return span("cpu_op", "aten::empty", 0, 0.1, pid=pid)


def document(events: Sequence[Any], rank: int = 0, world_size: int = 2, **fields: Any) -> bytes:
    """The file of one rank; fields of None are left out."""
    distributed = {"backend": "nccl", "rank": rank, "world_size": world_size}
    given = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": 132}],
        "distributedInfo": distributed,
        "host_name": fields.pop("host_name", None),
        "traceEvents": list(events),
        "traceName": "/tmp/trace.json",
    } | fields
    return json.dumps({k: v for k, v in given.items() if v is not None}, indent=1).encode()


def write(path: Path, events: Sequence[Any], rank: int = 0, **fields: Any) -> Path:
    """Write the file of one rank."""
    path.write_bytes(document(events, rank, **fields))
    return path


def steps(count: int, compute: float, comm: float, hidden: float = 0.0) -> list[dict[str, Any]]:
    """Steps of 100 ms: `compute` ms of kernels, then `comm` ms of which `hidden` run behind."""
    events: list[dict[str, Any]] = []
    for number in range(count):
        at = 100.0 * number
        events += [step(number, at, 100.0), kernel(GEMM, at, compute)]
        if comm:
            events.append(collective(at + compute - hidden, comm))
    return events
