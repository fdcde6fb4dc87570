"""Writes dumps of torch's flight recorder as NCCL's and gloo's do, in few words."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EPOCH_NS = 1_700_000_000 * 10**9


def call(
    seq: int, op: str = "all_reduce", *, group: str = "0", done: bool = False, **fields: Any
) -> dict[str, Any]:
    """A collective of float32 and 1,024 elements that was called `seq` seconds after the start."""
    elements = fields.pop("elements", 1024)
    line = fields.pop("line", 0)
    given = {
        "record_id": seq,
        "pg_id": int(group),
        "process_group": (group, fields.pop("label", "default_pg")),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"{fields.pop('backend', 'nccl')}:{op}",
        "time_created_ns": EPOCH_NS + seq * 10**9,
        "input_sizes": [[elements]],
        "input_dtypes": [fields.pop("dtype", "Float")],
        "output_sizes": [[elements]],
        "output_dtypes": ["Float"],
        "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    zero3 = fields.pop("zero3", "")
    if line:
        given["frames"] = [
            {"name": op, "filename": "/x/torch/distributed/distributed_c10d.py", "line": 9},
            *([{"name": "_fetch", "filename": zero3, "line": 3}] if zero3 else []),
            {"name": "train", "filename": "/home/me/train.py", "line": line},
        ]
    return given | fields


def document(
    entries: Sequence[Mapping[str, Any]],
    groups: Mapping[str, Sequence[int]] | None = None,
    *,
    status: Mapping[str, tuple[int, int]] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A dump; `groups` are name -> ranks, `status` is pg_id -> last enqueued, last completed."""
    groups = {"0": [0, 1]} if groups is None else groups
    labels = {"0": "default_pg"}
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": labels.get(name, f"group {name}"), "ranks": str([*ranks])}
            for name, ranks in groups.items()
        },
        "nccl_version": "2.27.3",
        "pg_status": {
            number: {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for number, (enqueued, completed) in (status or {}).items()
        },
        "entries": list(entries),
    } | fields


def gloo(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What gloo's recorder gives: no ranks of groups, and everything is for ever scheduled."""
    nameless = {"": {"name": "", "desc": "", "ranks": "[]"}}
    seen = [dict(entry, state="scheduled", retired=True) for entry in entries]
    return document(seen, pg_config=nameless, nccl_version="")


def write(folder: Path, rank: int, dump: Mapping[str, Any], *, as_json: bool = False) -> Path:
    """Write the dump of one rank as torch names it."""
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2))
    return path
