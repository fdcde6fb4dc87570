"""The example trains under another library as under gloo, and the reports can be compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dsprof.__main__ import main
from tests.dist.launch import ROOT, launch

pytestmark = [pytest.mark.dist, pytest.mark.long]

LARGE = {"all_gather_into_tensor", "reduce_scatter_tensor"}


def train(library: str, out: Path | None) -> list[str]:
    """Return losses and weights of each rank, as it prints them."""
    env = {"DSPROF": "1", "DSPROF_OUT": str(out)} if out else {"DSPROF": "0"}
    program = ROOT / "examples" / "other_backend.py"
    result = launch(program, args=["--library", library], env=env).check()
    lines = re.findall(r"rank \d losses [^r]* weights [0-9a-f]{16}", result.output)
    assert len(lines) == 2
    return sorted(lines)


def rows(out: Path) -> list[dict[str, Any]]:
    report = out.with_suffix(".json")
    assert main(["report", str(out), "--format", "json", "--output", str(report)]) == 0
    rows: list[dict[str, Any]] = json.loads(report.read_text())["communication"]
    return rows


def traffic(rows: list[dict[str, Any]]) -> set[tuple[str, int, int]]:
    return {(row["op"], row["calls"], row["bytes"]) for row in rows}


def test_the_result_and_the_traffic_are_those_of_gloo(tmp_path: Path) -> None:
    stock = train("gloo", None)
    assert train("gloo", tmp_path / "gloo") == stock
    expected = rows(tmp_path / "gloo")
    assert {row["op"] for row in expected} >= LARGE
    for library, off_wire in (("c10d", set()), ("deepspeed", LARGE)):
        assert train(library, tmp_path / library) == stock
        found = rows(tmp_path / library)
        assert traffic(found) == traffic(expected)
        assert {row["op"] for row in found if not row["on_wire"]} == off_wire
        assert all(row["exposed_ns"] > 0 and row["busbw"] > 0 for row in found)
