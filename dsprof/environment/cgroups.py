"""How much memory and how many CPUs a process may use: by its cgroup, and by its machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from dsprof.environment.processes import read_text

_PROC = Path("/proc")
_UNLIMITED = 1 << 60


class Cgroup:
    """The cgroup of a process, by version 2 of the interface or by version 1."""

    def __init__(self, pid: int, proc: Path = _PROC) -> None:
        self._folders: list[Path] = []  # its own, then those of the groups that contain it
        for line in read_text(proc / str(pid) / "cgroup").splitlines():
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            base = proc.parent / "sys/fs/cgroup" / controllers
            own = base / path.lstrip("/")
            self._folders += [one for one in (own, *own.parents) if one.is_relative_to(base)]

    def oom_kills(self) -> int | None:
        """Processes that the kernel has killed in it, ever."""
        for text in self._texts("memory.events", "memory.oom_control"):
            for line in text.splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and count.isdigit():
                    return int(count)
        return None

    def limit_bytes(self) -> int | None:
        """Its limit of memory; None: as much as there is."""
        limits = self._numbers("memory.max", "memory.limit_in_bytes")
        return min((limit for limit in limits if limit < _UNLIMITED), default=None)

    def cpus(self) -> float:
        """How many CPUs it may keep busy."""
        quotas = [text.split() for text in self._texts("cpu.max")]
        first = self._texts("cpu.cfs_quota_us"), self._texts("cpu.cfs_period_us")
        quotas += [[quota.strip(), period.strip()] for quota, period in zip(*first, strict=False)]
        return min(
            (int(quota) / int(period) for quota, period in quotas if quota.isdigit()),
            default=math.inf,
        )

    def _numbers(self, *names: str) -> Iterator[int]:
        return (int(text) for text in self._texts(*names) if text.strip().isdigit())

    def _texts(self, *names: str) -> Iterator[str]:
        """Yield what such files say, those of its own folder first."""
        texts = (read_text(folder / name) for folder in self._folders for name in names)
        return filter(None, texts)


def usable_cpus(proc: Path = _PROC) -> int:
    """Return how many CPUs this process can keep busy, at least one."""
    return max(1, int(min(len(os.sched_getaffinity(0)), Cgroup(os.getpid(), proc).cpus())))


def usable_bytes(proc: Path = _PROC) -> float:
    """Return how much memory this process can use; infinity where the kernel does not tell."""
    limit = Cgroup(os.getpid(), proc).limit_bytes()
    sizes = [line.split() for line in read_text(proc / "meminfo").splitlines()]
    available = [1024 * int(size[1]) for size in sizes if size[:1] == ["MemAvailable:"]]
    return min(*available, math.inf, math.inf if limit is None else limit)
