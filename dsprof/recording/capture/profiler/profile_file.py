"""Writes a profile beside the trace: without credentials, and only what is read of it."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import msgspec

from dsprof.files import notes
from dsprof.trace.readers.kineto.chrome import Events
from dsprof.trace.readers.kineto.events import OF_TORCH, Args
from dsprof.trace.schema import Header
from dsprof.trace.source import Source

_ARGS = frozenset(field.encode_name for field in msgspec.structs.fields(Args))
_FIELDS = ("ph", "cat", "pid", "tid", "ts", "dur")
_METADATA = ("baseTimeNanoseconds", "cuda_runtime_version", "hip_runtime_version")
_DEVICE = ("id", "name", "totalGlobalMem", "numSms")


def write_profile(results: Any, path: Path, header: Header, disclose: Callable[[str], str]) -> None:
    """Write what torch's profiler returned when it ended, as a whole.

    Torch writes to an open file without a name, so that nothing is left of it if the process is
    killed.

    Raises:
        OSError: there is no room, or no /proc.
        TraceError: torch wrote something else than a profile.
    """
    with TemporaryFile() as raw, TemporaryDirectory(prefix="dsprof-") as folder:
        name = Path(folder) / "profile.json"
        # Torch first writes beside the name that it is given.
        name.with_suffix(".json.tmp").symlink_to(f"/proc/{os.getpid()}/fd/{raw.fileno()}")
        results.save(str(name))
        with Source(name) as source:
            events = Events(source, path.name, dict[str, Any])
            packed = _packed(events, header, disclose)
    notes.put(path, packed)


def _packed(
    events: Events[dict[str, Any]], header: Header, disclose: Callable[[str], str]
) -> bytes:
    encode = msgspec.json.Encoder().encode
    rank = {"rank": header.rank, "world_size": header.world_size, "backend": header.backend}
    packed = BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        file.write(b'{"schemaVersion":1,"distributedInfo":%b,"traceEvents":[' % encode(rank))
        names: dict[str, str] = {}
        begin = b""
        for chunk in events:
            if kept := [*_kept(chunk, names, disclose)]:
                file.write(begin + encode(kept)[1:-1])
                begin = b",\n"
        file.write(b"]," + encode(_metadata(events))[1:])
    return packed.getvalue()


def _metadata(events: Events[Any]) -> dict[str, Any]:
    """Return what torch wrote before and after the events."""
    before = msgspec.json.decode(events.head.rstrip(b", \r\n\t") + b"}")
    after = msgspec.json.decode(b"{" + events.tail.lstrip(b", \r\n\t"))
    told = {"deviceProperties": [], **before, **after}
    devices = [_only(device, _DEVICE) for device in told["deviceProperties"]]
    return {**_only(told, _METADATA), "deviceProperties": devices}


def _kept(
    events: Iterable[dict[str, Any]], names: dict[str, str], disclose: Callable[[str], str]
) -> Iterable[dict[str, Any]]:
    def shown(text: str) -> str:
        if (found := names.get(text)) is None:
            found = names[text] = disclose(text)
        return found

    for event in events:
        if event.get("ph") == "X" and event.get("cat") in OF_TORCH:
            args = _only(event.get("args", {}), _ARGS)
            written = {k: shown(v) if isinstance(v, str) else v for k, v in args.items()}
            name = shown(str(event.get("name", "")))
            yield {**_only(event, _FIELDS), "name": name, "args": written}


def _only(fields: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}
