"""What is said of files that reports do not read."""

from __future__ import annotations

import bz2
import io
import lzma
import sqlite3
import tarfile
from pathlib import Path

import pytest

from dsprof.errors import TraceError
from dsprof.trace.reader import read_header

SEGFAULT = b"[1.000000] python3[12]: segfault at 0 ip 07f sp 07f error 4 in libnccl.so.2[7f+1]\n"


def tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("trace.rank00000.json"))
    return packed.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.json.bz2", bz2.compress(b"{}"), "unpack it: dsprof reads files that are plain, gzip"),
        ("a.json.xz", lzma.compress(b"{}"), "unpack it"),
        ("a.json.zst", b"\x28\xb5\x2f\xfd\x04\x00", "unpack it"),
        ("a.json.lz4", b"\x04\x22\x4d\x18\x64", "unpack it"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c", "unpack it"),
        ("a.tar", tar(), "unpack it"),
        ("a.pftrace", b"\n\x05\x08\x01", "a trace in Perfetto's own format, which is not read"),
        ("a.ncu-rep", b"NVR\0", "a report of Nsight Compute, which is not read"),
        ("dmesg.txt", SEGFAULT, "a log of a kernel; give it to `dsprof hang`"),
        ("dmesg.txt", b"[    0.000000] Linux version 6.0.11\n", "a log of a kernel"),
        (
            "dmesg.txt",
            b"[Wed Jan 27 23:04:35 2021] NVRM: Xid (PCI:0000:9b:00): 43, pid=8",
            "a log of",
        ),
        ("syslog", b"Dec 12 09:13:10 node7 kernel: Linux version 6.0.11\n", "a log of a kernel"),
        ("a.log", b"09:13:10 Using attention kernel: flash\n", "not a dsprof trace"),
    ],
)
def test_a_file_that_is_not_read_is_named(
    tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TraceError, match=said):
        read_header(tmp_path / name)


def test_a_database_of_rocprofv3_is_named(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "results.db")
    database.execute("create table rocpd_string_00a1 (id integer primary key, string text)")
    database.close()
    with pytest.raises(TraceError, match="output of rocprofv3, which is not read"):
        read_header(tmp_path / "results.db")
