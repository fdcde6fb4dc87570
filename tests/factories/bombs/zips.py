"""Zip archives."""

from __future__ import annotations

import copy
import gzip
import struct
import zipfile
from pathlib import Path

from tests.factories.bombs.cases import MIB, case, count
from tests.factories.bombs.native import native

WHOLE = native()


def zipped(
    path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED
) -> bytearray:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name), data)
    return bytearray(path.read_bytes())


@case("zip", "names")
def _zip_names(folder: Path, _: float) -> None:
    for number, name in enumerate((
        "/etc/trace.rank00000.json", "../trace.rank00000.json", "a/../../trace.rank00000.json",
        "C:\\trace.rank00000.json", "a\nb\x1b[31mtrace.rank00000.json", "x" * 60_000, "a//b", ".",
        "trace.rank00000.json/", "nul\0trace.rank00000.json",
    )):  # fmt: skip
        zipped(folder / f"name{number}.zip", (name, WHOLE))


@case("zip", "sizes")
def _zip_sizes(folder: Path, _: float) -> None:
    """Sizes, offsets and checksums that are not true."""
    place = {
        "size": 24,
        "packed": 20,
        "crc": 16,
        "offset": 42,
        "method": 10,
        "flags": 8,
        "name": 28,
    }
    for word, offset in place.items():
        for number, value in enumerate((0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)):
            width = "<H" if word in ("method", "flags") else "<I"
            data = zipped(path := folder / f"{word}{number}.zip", ("trace.rank00000.json", WHOLE))
            entry = data.rindex(b"PK\x01\x02")
            struct.pack_into(width, data, entry + offset, value & (0xFFFF if width == "<H" else -1))
            path.write_bytes(data)


@case("zip", "nested")
def _nested(folder: Path, scale: float) -> None:
    inner = bytes(zipped(folder / "inner.zip", ("trace.rank00000.json", WHOLE)))
    for _ in range(10):
        inner = bytes(zipped(folder / "nested.zip", ("inner.zip", inner)))
    bomb = gzip.compress(gzip.compress(b" " * count(500 * MIB, scale), 9), 9)
    zipped(folder / "gzip.zip", ("trace.rank00000.json.gz", bomb))
    (folder / "trace.rank00000.json.gz").write_bytes(bomb)
    (folder / "trace.rank00001.json.gz").write_bytes(gzip.compress(b"") * count(3_000_000, scale))


@case("zip", "members")
def _members(folder: Path, scale: float) -> None:
    with zipfile.ZipFile(folder / "many.zip", "w") as archive:
        for i in range(count(30_000, scale)):
            archive.writestr(zipfile.ZipInfo(f"trace.rank{i:05d}.json"), WHOLE)
    with zipfile.ZipFile(folder / "same.zip", "w") as archive:
        archive.writestr("trace.rank00000.json", WHOLE)
        first = archive.filelist[0]
        for i in range(count(30_000, scale)):  # entries that lie one over the other
            info = copy.copy(first)
            info.filename = f"trace.rank{i:05d}.json"
            archive.filelist.append(info)
