"""Small files made to fill the memory, or to lead a reader astray."""

from __future__ import annotations

import gzip
import os
import struct
import zipfile
from pathlib import Path

PROFILE = b'{"traceEvents": [\n'
SPARSE_BYTES = 4_800_000_000
DUMP = b'{"version":"2.9","pg_config":{},"pg_status":{},"entries":['
LOG = b"host1:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
SNAPSHOT = b"\x80\x04}X\x08\x00\x00\x00segments]\x94"


def write_all(folder: Path) -> list[Path]:
    """Write one of each kind into `folder`."""
    folder.mkdir(exist_ok=True)
    for method, name in ((zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "lzma")):
        packed(folder / f"{name}.zip", method, 300)
    packed(folder / "deflate.zip", zipfile.ZIP_DEFLATED, 100)
    directory(folder / "directory.zip", 400_000)
    for name, start in {
        "diagnosis.json": b'{"schema_version":1,"findings":[',
        "profile.json": PROFILE,
        "native.json": b"[\n",
        "hosts.log": LOG,
        "snapshot.pickle": SNAPSHOT,
        "tables.sqlite": b"SQLite format 3\x00",
        "archive.zip": b"PK\x03\x04",
        "packed.json.gz": b"\x1f\x8b\x08\x00",
    }.items():
        sparse(folder / f"sparse_{name}", start)
    for name, data in {
        "memo_rank0.pickle": SNAPSHOT + b"\x94" * (30 << 20) + b"s.",
        "lists_rank0.pickle": SNAPSHOT + b"]\x94" * (15 << 20) + b".",
        "objects_rank0.json": DUMP + b"{}," * (10 << 20) + b"{}]}",
        "nested.json": b"[" * (30 << 20),
    }.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data, 1))
    (folder / "trace.rank00007.json").symlink_to("trace.rank00007.json")
    (folder / "trace.rank00008.json").symlink_to("nowhere")
    return sorted(folder.iterdir())


def packed(path: Path, method: int, megabytes: int) -> None:
    """Write a zip of a profile that is almost nothing but blanks, and says it is short."""
    with zipfile.ZipFile(path, "w", method) as archive:
        with archive.open("rank0.json", "w") as member:
            member.write(PROFILE)
            for _ in range(megabytes):
                member.write(b" " * (1 << 20))
        archive.infolist()[0].file_size = 1000


def sparse(path: Path, start: bytes) -> None:
    """Write a file that ends far behind its last byte on disk."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(SPARSE_BYTES)


def directory(path: Path, entries: int) -> None:
    """Write a zip with an empty file and a directory that names it again and again."""
    start = b"PK\x03\x04" + bytes(26)
    sizes = (20, 20, *(0,) * 7, 4, *(0,) * 6)
    entry = b"PK\x01\x02" + struct.pack("<HHHHHHIIIHHHHHII", *sizes)
    names = b"".join(entry + b"%04x" % (number & 0xFFFF) for number in range(entries))
    counts = struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, entries, entries, len(names), len(start))
    locator = struct.pack("<IQI", 0, len(start) + len(names), 1)
    end = struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    tail = b"PK\x06\x06" + counts + b"PK\x06\x07" + locator + b"PK\x05\x06" + end
    path.write_bytes(start + names + tail)


def owned_by_another(path: Path) -> None:
    """Give a file, or a link, to a user who is nobody here. Needs root."""
    os.lchown(path, 12345, 12345)
