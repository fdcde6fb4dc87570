"""Numbers that no clock reaches are found wherever they stand in a line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsprof.trace.dumps.state_file import Line
from dsprof.trace.lines import fits, header_of
from dsprof.trace.schema import Group


@pytest.mark.parametrize(("first", "is_fit"), [(0, True), (2**62, False), (-(2**70), False)])
def test_numbers_in_pairs_and_lists_count(first: int, is_fit: bool) -> None:
    group = Group(id=1, key="k", label="data", ranks=[first], size=2)
    assert fits(Line(span=(first, 1))) == is_fit
    assert fits(Line(group=group)) == is_fit
    assert fits(Line(word=(first, "all_reduce"))) == is_fit


@pytest.mark.parametrize("last", [2**31, 2**62, "x", 0.5, [2**62]])
def test_the_last_number_of_a_list_counts(last: object) -> None:
    is_fit = last not in (2**62, [2**62])
    assert fits([0, 1, last]) == is_fit


def test_a_pipe_in_place_of_a_trace_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.rank00000.json")
    assert header_of(tmp_path / "trace.rank00000.json") is None
