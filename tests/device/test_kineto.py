from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.device import kineto


def test_exposed_is_communication_without_computation(tmp_path: Path) -> None:
    events = [
        ("kernel", "gemm", 0, 10),
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 5, 20),
        ("kernel", "gemm", 22, 8),
        ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 40, 5),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 60, 5),
        ("cpu_op", "aten::mm", 0, 99),
    ]
    lines = [{"cat": c, "name": n, "ts": t, "dur": d} for c, n, t, d in events]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [*lines, {"name": "no category"}]}))
    # 10-22 of the copy and 40-45.
    assert kineto.exposed_us(file) == pytest.approx(12 + 5)
    # From 0 to 30, less 0-10 and 22-30.
    assert kineto.idle_us(file) == pytest.approx(12)
    assert kineto.gaps_us(file, kernels=2, after=0) == pytest.approx(12)
