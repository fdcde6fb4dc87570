"""Folders."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from tests.factories.bombs.cases import case, count
from tests.factories.bombs.logs import FIRST
from tests.factories.bombs.native import HEADER
from tests.factories.bombs.zips import WHOLE, zipped
from tests.factories.trace_files import write_run


@case("folder", "names")
def _names(folder: Path, _: float) -> None:
    write_run(folder, 2)
    for name in (b"a\nb", b"\x1b[31m", b"\xff\xfe", "\u202e\x9b".encode(), b"x" * 250):
        for suffix in (b".json", b".zip", b".log", b".pickle"):
            path = os.fsencode(folder) + b"/trace.rank1" + name[:200] + suffix
            Path(os.fsdecode(path)).write_bytes(FIRST if suffix == b".log" else b"{}")
    zipped(Path(os.fsdecode(os.fsencode(folder) + b"/\xff.zip")), ("\u202e.json", WHOLE))


@case("folder", "kinds")
def _kinds(folder: Path, _: float) -> None:
    """Entries that are no regular file, or cannot be read."""
    write_run(folder, 2)
    os.mkfifo(folder / "trace.rank00002.json")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(folder, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/trace.rank00003.json")
        os.close(here)
    for number, target in enumerate((
        "trace.rank00100.json", "nowhere", "/dev/zero", "/dev/full", "/proc/self/mem", "/proc/kmsg",
        "/sys/kernel/mm", ".", "..", "/", "/dev/stdin", "/proc/self/fd/0", "trace.rank00002.json",
    ), 100):  # fmt: skip
        (folder / f"trace.rank{number:05d}.json").symlink_to(target)
    (folder / "trace.rank00004.json").mkdir()
    (folder / "trace.rank00005.json").write_bytes(WHOLE)
    (folder / "trace.rank00005.json").chmod(0)
    (folder / "loop_a").symlink_to("loop_b")
    (folder / "loop_b").symlink_to("loop_a")


@case("folder", "many")
def _many_files(folder: Path, scale: float) -> None:
    write_run(folder, 2)
    for i in range(count(100_000, scale)):
        (folder / f"x{i}").touch()


@case("folder", "ranks")
def _many_ranks(folder: Path, scale: float) -> None:
    """Many ranks with only a header each, and as many copies."""
    for i in range(count(3000, scale)):
        head = msgspec.json.encode(HEADER).replace(b'"rank":0', b'"rank":%d' % i)
        head = head.replace(b'"world_size":1', b'"world_size":1048576')
        for name in ("trace", "trace.copy"):
            (folder / f"{name}.rank{i:05d}.json").write_bytes(b"[\n" + head)
