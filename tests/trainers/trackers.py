"""Reads what trackers have written: their scalars, and the report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 1 << 15
_HEAD_BYTES = 7


def wandb_history(folder: Path) -> list[dict[str, str]]:
    """Return what an offline run of W&B has logged."""
    return [
        {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
        for record in _wandb_records(folder)
        if record.HasField("history")
    ]


def wandb_artifacts(folder: Path) -> dict[str, dict[str, str]]:
    """Return the MD5 of each file of each artifact of an offline run of W&B, in base64."""
    return {
        record.artifact.name: {one.path: one.digest for one in record.artifact.manifest.contents}
        for record in _wandb_records(folder)
        if record.HasField("artifact")
    }


def _wandb_records(folder: Path) -> Iterator[Any]:
    """Yield what is in the file of an offline run: a log of LevelDB with protobuf inside."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return map(Record.FromString, _level_db_records(file.read_bytes()))


def _level_db_records(data: bytes) -> Iterator[bytes]:
    place, record = _HEAD_BYTES, b""
    while place + _HEAD_BYTES <= len(data):
        if (left := -place % _BLOCK_BYTES) and left < _HEAD_BYTES:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        place += _HEAD_BYTES
        record += data[place : place + size]
        place += size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def tensorboard_events(folder: Path) -> Any:
    """Return the events of a folder, of all its files together."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    return events


def tensorboard_text(folder: Path, tag: str) -> str:
    """Return the last text of a tag."""
    last = tensorboard_events(folder).Tensors(f"{tag}/text_summary")[-1]
    (text,) = last.tensor_proto.string_val
    return text.decode()


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    """Run MLflow's server on 127.0.0.1; yield its address."""
    options = [f"--backend-store-uri=sqlite:///{folder}/db"]
    options += [f"--artifacts-destination={folder}/artifacts", "--host=127.0.0.1", "--workers=1"]
    command = [sys.executable, "-m", "mlflow", "server", *options, f"--port={port}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            said = ""
            while "Uvicorn running" not in said:
                said = server.stdout.readline()
                assert said, "the server has ended"
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
