"""What ZeRO-3 releases: each parameter once, in its phase, as a count of what DeepSpeed frees."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from dsprof.trace.reader import read_trace
from tests.dist.launch import PROGRAMS, launch

pytestmark = [pytest.mark.dist, pytest.mark.long]


def test_releases_are_what_deepspeed_frees(tmp_path: Path) -> None:
    """With gradients accumulated, layers that get none, and an evaluation after each step."""
    launch(PROGRAMS / "zero_releases.py", args=[tmp_path], imported="compiler").check()
    for rank in range(2):
        (file,) = tmp_path.glob(f"trace*.rank{rank:05d}.json")
        seen: Counter[str] = Counter()
        for fetch in read_trace(file).fetches:
            if fetch.kind == "release" and fetch.phase:
                seen[f"{fetch.engine} {fetch.phase}"] += fetch.elements
        freed = json.loads((tmp_path / f"freed.{rank}.json").read_text())
        assert len(freed) >= 3
        assert seen == Counter(freed)
