from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

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
