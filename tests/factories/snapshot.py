"""Writes memory snapshots as torch.cuda.memory does, in few words. Sizes are in MiB."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MIB = 1 << 20


def segment(*blocks: float, **fields: Any) -> dict[str, Any]:
    """A segment of blocks; one below zero is free."""
    made = [
        {
            "address": i << 30,
            "size": int(abs(size) * MIB),
            "requested_size": int(abs(size) * MIB),
            "state": "active_allocated" if size > 0 else "inactive",
            "frames": [],
        }
        for i, size in enumerate(blocks)
    ]
    active = sum(block["size"] for block in made if block["state"] != "inactive")
    return {
        "device": 0,
        "address": 1 << 40,
        "total_size": sum(block["size"] for block in made),
        "allocated_size": active,
        "active_size": active,
        "requested_size": active,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": made,
        **fields,
    }


def event(action: str, address: int, size: float, line: int = 1, **fields: Any) -> dict[str, Any]:
    """One event of the history."""
    frames = [
        {"name": "empty", "filename": "/x/torch/_tensor.py", "line": 5},
        {"name": "forward", "filename": "/home/me/model.py", "line": line},
    ]
    given = {"action": action, "addr": address, "size": int(size * MIB), "stream": 0}
    return given | {"time_us": 1_700_000_000_000_000, "frames": frames} | fields


def document(
    segments: Sequence[dict[str, Any]], history: Sequence[dict[str, Any]] = (), **fields: Any
) -> dict[str, Any]:
    """A snapshot of one device."""
    settings = {"expandable_segments": False}
    given = {"segments": list(segments), "device_traces": [list(history)]}
    return given | {"allocator_settings": settings, "external_annotations": []} | fields


def write(path: Path, *args: Any, **fields: Any) -> Path:
    path.write_bytes(pickle.dumps(document(*args, **fields)))
    return path
