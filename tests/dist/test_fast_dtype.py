"""The demo trains in the dtype that a CPU computes fast, on all ranks in the same."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from examples.wrong.cases import AVX2_ONLY
from tests.dist.launch import PROGRAMS, launch

pytestmark = [
    pytest.mark.dist,
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "AMD64"), reason="AVX2 is simulated on x86 only"
    ),
]


def test_without_instructions_for_bfloat16_all_ranks_take_float32(tmp_path: Path) -> None:
    done = launch(
        PROGRAMS / "fast_dtype.py", args=[tmp_path], env=AVX2_ONLY, imported="compiler"
    ).check()
    [said, *_] = [line for line in done.output.splitlines() if line.startswith("dtype ")]
    assert said.startswith("dtype float32: this CPU multiplies two 256x256 matrices in ")
    for rank in range(2):
        found = json.loads((tmp_path / f"dtype.rank{rank}.json").read_text())
        assert found == {
            "bfloat16 is supported": False,
            "measured": "torch.float32",
            "both quick": "torch.bfloat16",
            "first slow": "torch.float32",
            "last slow": "torch.float32",
        }
