"""Where ZeRO-3 shards over a part of the ranks: what a fetch counts is what was gathered."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.trace.reader import read_trace
from tests.dist.launch import PROGRAMS, launch

pytestmark = [pytest.mark.dist, pytest.mark.long]

LAYER = 32 * 32 + 32
LAYERS, STEPS = 2, 3


def test_a_fetch_counts_whole_parameters_of_the_ranks_that_share_them(tmp_path: Path) -> None:
    launch(PROGRAMS / "zero_in_pairs.py", 4, args=[tmp_path], imported="compiler").check()
    traces = [read_trace(file) for file in sorted(tmp_path.glob("*.json"))]
    assert [trace.rank for trace in traces] == [0, 1, 2, 3]
    for trace in traces:
        for kind in ("fetch", "release"):
            sizes = [fetch.elements for fetch in trace.fetches if fetch.kind == kind]
            assert sizes == [LAYER] * LAYERS * STEPS * 2, kind
