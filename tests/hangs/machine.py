"""What a case asks of the kernel: memory that ends, and a file system that does not answer."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

FUSE = "/dev/fuse"
MEMORY = Path("/sys/fs/cgroup/memory")
"""Of version 1, in which a process may have a group of its own for memory only."""

_RANK_BYTES = 1 << 29
_QUESTION_BYTES = 1 << 16
_HEADER, _ANSWER = struct.Struct("<IIQ"), struct.Struct("<IiQIIIIHHIIHHI28x")
_MAJOR, _MINOR = 7, 31


def limit_memory(pids: list[int], folder: Path) -> None:
    """Put processes in a cgroup that has memory for healthy ranks, and no more."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            group = MEMORY / path.lstrip("/") / f"hangs-{os.getpid()}"
            group.mkdir()
            (folder / "cgroup").write_text(str(group))
            (group / "memory.limit_in_bytes").write_text(str(_RANK_BYTES * len(pids)))
            for pid in pids:
                (group / "cgroup.procs").write_text(str(pid))


def mount_what_hangs(folder: Path) -> Path:
    """Mount a file system in user space whose server says hello, and nothing more."""
    place = (folder / "mounted").absolute()
    place.mkdir()
    (folder / "mount").write_text(str(place))
    server = os.open(FUSE, os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hangs", os.fsencode(place), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
    _, _, number = _HEADER.unpack_from(os.read(server, _QUESTION_BYTES))
    answer = (_ANSWER.size, 0, number, _MAJOR, _MINOR, 0, 0, 8, 8, 4096, 1, 0, 0, 0)
    os.write(server, _ANSWER.pack(*answer))
    return place


def put_back(folder: Path) -> None:
    """Undo what was done for a run whose processes have ended."""
    if (noted := folder / "mount").exists():
        subprocess.run(["umount", "-l", noted.read_text()], check=False)
    if (noted := folder / "cgroup").exists():
        with suppress(OSError):
            os.rmdir(noted.read_text())
