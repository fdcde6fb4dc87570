from __future__ import annotations

import os
import platform
import subprocess
import sys
from operator import add
from resource import RUSAGE_SELF, getrusage

import numpy as np
import pytest

from dsprof.analysis.engine import Job, Processes, unshown
from dsprof.analysis.freed_memory import kept_freed_memory

_FAULTS = """
from contextlib import nullcontext
from resource import RUSAGE_SELF, getrusage

import numpy as np

from dsprof.analysis.freed_memory import kept_freed_memory

for context in (kept_freed_memory(), nullcontext()):
    with context:
        np.ones(1 << 20)
        before = getrusage(RUSAGE_SELF).ru_minflt
        for _ in range(50):
            np.ones(1 << 20)
        print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""

_FAULTS_OF_SEVERAL = """
from resource import RUSAGE_SELF, getrusage

import numpy as np

from dsprof.analysis.freed_memory import keep_large_arrays

for prepare in (int, keep_large_arrays):
    prepare()
    np.ones(1 << 20)
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(20):
        held = [np.ones(1 << 20) for _ in range(5)]
        del held
    print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""

of_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about malloc of glibc")


@of_glibc
def test_memory_is_used_again_while_work_lasts_and_not_after_it() -> None:
    environment = os.environ | {"MALLOC_TRIM_THRESHOLD_": "65536"}
    told = subprocess.run([sys.executable, "-c", _FAULTS], env=environment, stdout=subprocess.PIPE)
    during, after = map(int, told.stdout.split())
    assert 4 * during < after


@of_glibc
def test_memory_of_several_large_arrays_is_used_again():
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", _FAULTS_OF_SEVERAL]
    told = subprocess.run(command, env=own, stdout=subprocess.PIPE)
    without, with_it = map(int, told.stdout.split())
    assert 4 * with_it < without


@of_glibc
def test_processes_use_memory_again_where_dask_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Dask sets for its workers stays in the environment of the process that starts them."""
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    job = Job(faults_of_a_process, add, faults_of_a_process)
    for kept, trimmed in Processes(2).merged(job, [1, 2], unshown):
        assert 4 * kept < trimmed


def faults_of_a_process(_: int) -> list[tuple[int, int]]:
    """Count page faults as they are, and when memory is trimmed again."""
    kept = _faults()
    with kept_freed_memory():
        pass
    return [(kept, _faults())]


def _faults() -> int:
    np.ones(1 << 20)
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(50):
        np.ones(1 << 20)
    return getrusage(RUSAGE_SELF).ru_minflt - before
