from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsprof.analysis.aggregates.flights import Flights
from dsprof.analysis.summarise import summarise
from dsprof.rules.mismatched_collective import RULE
from dsprof.rules.rule import Finding, Severity, Status
from dsprof.rules.runner import judge
from dsprof.trace.run import find_run
from tests.factories import flight as make
from tests.factories.trace import rank_trace, said


def check(folder: Path, *calls: Mapping[str, Any]) -> Finding:
    """Judge ranks that each made one call, of the same number."""
    for rank, call in enumerate(calls):
        make.write(folder, rank, make.document([call], {"0": range(len(calls))}))
    [finding] = judge(summarise(find_run([folder]), [Flights]), [RULE])
    return finding


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        ({"op": "_all_gather_base"}, "operation"),
        ({"elements": 2048}, "size"),
        ({"dtype": "BFloat16"}, "dtype"),
    ],
)
def test_the_rank_that_differs_from_most_is_named(
    tmp_path: Path, odd: dict[str, Any], what: str
) -> None:
    usual = make.call(7, line=10)
    finding = check(tmp_path, usual, usual, make.call(7, line=20, **odd), usual)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.CRITICAL)
    assert finding.ranks == (2,)
    assert f"number 7 of default_pg differs in {what}" in finding.summary
    assert [row[2] for row in finding.evidence[0].rows] == [
        "/home/me/train.py:10 train",
        "/home/me/train.py:20 train",
    ]


def test_of_two_that_differ_neither_is_accused(tmp_path: Path) -> None:
    finding = check(tmp_path, make.call(1), make.call(1, "broadcast"))
    assert (finding.status, finding.ranks) == (Status.FAIL, ())


@pytest.mark.parametrize("op", ["all_to_all", "gather", "coalesced"])
def test_operations_that_may_be_uneven_pass(tmp_path: Path, op: str) -> None:
    assert check(tmp_path, make.call(1, op), make.call(1, op, elements=9)).status is Status.PASS


def test_gathering_shapes_of_the_same_size_passes(tmp_path: Path) -> None:
    two = make.call(1, input_sizes=[[32, 32]], output_sizes=[[32, 32]])
    assert check(tmp_path, make.call(1), two).status is Status.PASS


def test_the_same_calls_pass(tmp_path: Path) -> None:
    assert check(tmp_path, make.call(1), make.call(1)).status is Status.PASS


def test_one_dump_alone_does_not_tell(tmp_path: Path) -> None:
    assert check(tmp_path, make.call(1)).status is Status.UNKNOWN


def test_without_dumps_it_does_not_apply() -> None:
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE
