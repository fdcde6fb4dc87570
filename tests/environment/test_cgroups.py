from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsprof.environment.cgroups import usable_bytes, usable_cpus

_SECOND = {
    "job/memory.max": "4000000000",
    "job/cpu.max": "150000 100000",
    "job/task/memory.max": "max",
    "job/task/cpu.max": "max 100000",
}
_FIRST = {
    "memory/job/memory.limit_in_bytes": "4000000000",
    "memory/job/task/memory.limit_in_bytes": "9223372036854771712",
    "cpu,cpuacct/job/cpu.cfs_quota_us": "150000",
    "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
    "cpu,cpuacct/job/task/cpu.cfs_quota_us": "-1",
    "cpu,cpuacct/job/task/cpu.cfs_period_us": "100000",
}


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of processes of a machine with 64 CPUs and 8 GB of available memory."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    own = tmp_path / "proc" / str(os.getpid())
    own.mkdir(parents=True)
    (own.parent / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    return own.parent


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("0::/job/task\n", _SECOND),
        ("2:memory:/job/task\n1:cpu,cpuacct:/job/task\n0::/\n", _FIRST),
    ],
    ids=["version 2", "version 1"],
)
def test_limits_of_the_groups_around_a_process_hold(
    proc: Path, groups: str, files: dict[str, str]
) -> None:
    (proc / str(os.getpid()) / "cgroup").write_text(groups)
    for name, text in files.items():
        file = proc.parent / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert (usable_bytes(proc), usable_cpus(proc)) == (4_000_000_000, 1)


def test_without_a_limit_the_machine_is_what_there_is(proc: Path) -> None:
    assert (usable_bytes(proc), usable_cpus(proc)) == (8_192_000_000, 64)
