"""What DTensor's collectives are for, against torch's own log of a run without dsprof."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsprof.trace.reader import read_trace
from tests.dist.launch import PROGRAMS, launch

pytestmark = [pytest.mark.dist, pytest.mark.long]

PLACEMENT = re.compile(r"MaskP\(sum, .*?\), \d\)|_NormP\([\d.]+\)|P\(\w+\)|S\(\d\)|R")
ABBREVIATED = {"MaskP(sum": "MaskPartial(sum)", "_NormP(2.0)": "NormPartial(sum)", "R": "Replicate"}
SCENARIOS = ("tensor_parallel", "sequence_parallel", "redistribute", "gradient_norm")


@pytest.fixture(scope="module", params=[2, 4])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dtensor")
    launch(
        PROGRAMS / "dtensor_changes.py", request.param, args=[folder], imported="compiler"
    ).check()
    return folder


def changes(log: str, sizes: dict[str, int]) -> Iterator[str]:
    """Yield the steps of DebugMode's redistributions that end in a collective."""
    path: list[list[str]] = []
    for line in log.splitlines():
        if "c10d::scatter_" in line or "c10d::broadcast_" in line:
            yield "whole tensor"
        elif "trace: " in line:
            text = line.split("trace: ")[1]
            path = [PLACEMENT.findall(step) for step in text.split("->")]
        elif re.search("_c10d_functional::(all|reduce)_", line):
            before, after = path[0], path[1]
            while (change := moved(before, after, sizes)) is None:
                path.pop(0)
                before, after = path[0], path[1]
            path.pop(0)
            yield change


def moved(before: list[str], after: list[str], sizes: dict[str, int]) -> str | None:
    """What changed between two steps, None if that takes no collective."""
    names = list(sizes)[-len(before) :]
    for old, new, name in zip(before, after, names, strict=True):
        if old != new and old != "R" and sizes[name] > 1:
            return f"{spoken(old)} -> {spoken(new)} on {name}"
    return None


def spoken(placement: str) -> str:
    known = ABBREVIATED.get(placement) or ABBREVIATED.get(placement.split(",", maxsplit=1)[0])
    return known or placement.replace("S(", "Shard(").replace("P(", "Partial(")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_collective_says_what_change_it_makes(run: Path, scenario: str) -> None:
    files = sorted((run / scenario).glob("*.json"))
    assert len(files) == len(list(run.glob("oracle.*")))
    for trace in map(read_trace, files):
        log = json.loads((run / f"oracle.rank{trace.rank}.json").read_text())[scenario]
        table = trace.collectives
        requested = [table.words[code] for code in table.requested]
        assert all(text.startswith("DTensor ") for text in requested if text)
        seen = [text.removeprefix("DTensor ") for text in requested if text]
        told = list(changes(log, {"dp": len(files) // 2, "tp": 2}))
        assert [text.split(" -> ")[0] if "whole" in text else text for text in seen] == told
        assert len(set(table.request[table.request > 0])) == len(told), "each is a request"
        unnamed = {
            table.words[op] for op, text in zip(table.op, requested, strict=True) if not text
        }
        assert unnamed <= {"barrier", "all_gather_into_tensor", "reduce_scatter_tensor"}  # FSDP2's
        assert trace.trailer is not None
        assert not trace.trailer.failed_hooks


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_groups_have_the_role_of_their_dimension(run: Path, scenario: str) -> None:
    for trace in map(read_trace, (run / scenario).glob("*.json")):
        table = trace.collectives
        for group, code in zip(table.group.tolist(), table.requested, strict=True):
            if table.words[code]:
                role = "data" if table.words[code].endswith(" on dp") else "tensor"
                assert trace.groups[group].role == role
