"""What a DeepSpeed configuration asks for is what goes over the wire, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsprof.analysis.run.traffic_differences import Line
from dsprof.trace.reader import read_trace
from tests.dist.launch import PROGRAMS, launch
from tests.dist.traces import asked_and_sent
from tests.dist.zero_variations import VARIATIONS

pytestmark = [pytest.mark.dist, pytest.mark.long]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("variations")
    launch(PROGRAMS / "zero_variations.py", args=[out], imported="compiler").check()
    return out


def lines(folder: Path) -> Iterator[dict[str, Line]]:
    files = sorted(folder.glob("trace.rank*.json"))
    assert len(files) == 2
    yield from (asked_and_sent(read_trace(file)) for file in files)


@pytest.mark.parametrize("name", [name for name in VARIATIONS if name != "unused"])
def test_every_byte_and_call_is_asked_for(folder: Path, name: str) -> None:
    stage = VARIATIONS[name]["stage"]
    for found in lines(folder / name):
        modelled = {what: line for what, line in found.items() if line.expected_bytes is not None}
        assert ("parameters after the step" in modelled) == (stage < 3 or "persistent" in name)
        for line in modelled.values():
            assert line.expected_bytes is not None
            assert line.expected_bytes[1] == line.nbytes, line
            if line.expected_calls is not None and name != "round robin":
                assert line.expected_calls == (line.calls, line.calls), line
            assert line.verdict == "as asked", line


def test_parameters_without_a_gradient_are_found(folder: Path) -> None:
    for found in lines(folder / "unused"):
        assert found["gradients"].verdict == "explained"
        assert found["gradients"].cause == "25 % of the parameters had no gradient"
