"""The example trains under another library as under gloo, and the reports can be compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dsprof.__main__ import main
from tests.dist.launch import PROGRAMS, ROOT, launch

pytestmark = [pytest.mark.dist, pytest.mark.long]

LARGE = {"all_gather_into_tensor", "reduce_scatter_tensor"}


def train(library: str, out: Path | None, *more: str) -> list[str]:
    """Return losses and weights of each rank, as it prints them."""
    env = {"DSPROF": "1", "DSPROF_OUT": str(out)} if out else {"DSPROF": "0"}
    example = ROOT / "examples" / "other_backend.py"
    args = [example, "--library", library, *more]
    result = launch(PROGRAMS / "left_in_order.py", args=args, env=env, imported="compiler").check()
    lines = re.findall(r"rank \d losses [^r]* weights [0-9a-f]{16}", result.output)
    assert len(lines) == 2
    return sorted(lines)


def compared(before: Path, after: Path) -> dict[str, Any]:
    report = after.with_suffix(".json")
    words = ["compare", str(before), str(after), "--format", "json", "--output", str(report)]
    assert main(words) == 0
    comparison: dict[str, Any] = json.loads(report.read_text())
    return comparison


def test_the_result_and_the_traffic_are_those_of_gloo(tmp_path: Path) -> None:
    gloo = tmp_path / "gloo"
    stock = train("gloo", None)
    assert train("gloo", gloo) == stock
    for library, moved in (("c10d", set()), ("deepspeed", LARGE)):
        assert train(library, tmp_path / library) == stock
        found = compared(gloo, tmp_path / library)
        assert {row["op"] for row in found["operations"]} >= LARGE
        assert not any(row["is_changed"] for row in found["operations"])
        assert {row["op"] for row in found["kinds"] if not row["on_wire"]} == moved
        assert {row["op"] for row in found["kinds"] if row["is_changed"]} == moved
        assert all(row["after_exposed_ns"] > 0 for row in found["operations"])
        assert all(row["after_busbw"] > 0 for row in found["kinds"] if row["after_calls"])
        assert (found["unlike"], found["configuration"], found["versions"]) == ([], [], [])
        step = next(row for row in found["times"] if row["part"] == "total")
        assert step["judgement"] in ("slower", "inconclusive", "not compared")
