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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="sets the malloc of glibc")
def test_memory_is_used_again_while_work_lasts_and_not_after_it() -> None:
    environment = os.environ | {"MALLOC_TRIM_THRESHOLD_": "65536"}
    told = subprocess.run([sys.executable, "-c", _FAULTS], env=environment, stdout=subprocess.PIPE)
    during, after = map(int, told.stdout.split())
    assert 4 * during < after
