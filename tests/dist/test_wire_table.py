"""Each way to communicate is on record once, with the operations and bytes that torch counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from dsprof.trace.reader import read_trace
from dsprof.trace.table import RankTrace
from tests.dist.launch import PROGRAMS, launch
from tests.dist.programs.wire_rows import COMPILED, MESH, ROWS
from tests.dist.traces import operations

pytestmark = pytest.mark.dist

PROGRAM = PROGRAMS / "wire_table.py"

ISSUED_BY_CPP = {
    "compiled_ddp",
    "compiled_with_aot_eager",
    "compiled_with_inductor",
    "ddp",
    "ddp_gradient_as_bucket_view",
    "ddp_no_sync",
    "ddp_python_hook",
    "ddp_static_graph",
    "dtensor_full_tensor",
    "dtensor_redistribute",
    "functional_collectives",
    "functional_collectives_with_gradients",
    "tensor_and_data_parallel",
    "tensor_parallel",
    "zero_redundancy_optimizer",
}
"""Rows of which `interception: process_group` sees nothing, or not all."""

CASES = [
    *(pytest.param("ROWS", 2, row, id=row) for row in ROWS),
    *(pytest.param("COMPILED", 2, row, id=row, marks=pytest.mark.long) for row in COMPILED),
    *(pytest.param("MESH", 4, row, id=row, marks=pytest.mark.long) for row in MESH),
]
each_row = pytest.mark.parametrize(("name", "nproc", "row"), CASES)


@dataclass(frozen=True)
class Table:
    """The folder of a run with the oracle, and that of one with dsprof."""

    oracle: Path
    traces: Path
    nproc: int

    def counts(self, row: str) -> list[dict[str, list[int]]]:
        files = [self.oracle / f"{row}.rank{rank}.json" for rank in range(self.nproc)]
        return [json.loads(file.read_text()) for file in files]

    def recorded(self, row: str, interception: str) -> Iterator[RankTrace | None]:
        """Yield what each rank recorded; None where it saw nothing."""
        for rank in range(self.nproc):
            files = list((self.traces / interception / row).glob(f"*.rank{rank:05d}.json"))
            yield read_trace(files[0]) if files else None

    def seen(self, row: str, interception: str) -> list[dict[str, list[int]]]:
        return [
            operations(trace, range(len(trace.collectives.op))) if trace else {}
            for trace in self.recorded(row, interception)
        ]


Tables = Callable[[str, int], Table]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Runs a table when it is first asked for."""

    @cache
    def table(name: str, nproc: int) -> Table:
        out = tmp_path_factory.mktemp(name)
        bare = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # torch imports what offers itself
        launch(PROGRAM, nproc, args=[out / "oracle", name, "--oracle"], env=bare).check()
        launch(PROGRAM, nproc, args=[out / "traces", name]).check()
        return Table(out / "oracle", out / "traces", nproc)

    return table


@each_row
@pytest.mark.parametrize("interception", ["auto", "dispatcher"])
def test_all_is_seen_that_torch_counts(
    tables: Tables, name: str, nproc: int, row: str, interception: str
) -> None:
    table = tables(name, nproc)
    counts = table.counts(row)
    assert all(counts), "the oracle saw nothing"
    assert table.seen(row, interception) == counts


@each_row
def test_methods_see_what_python_issues(tables: Tables, name: str, nproc: int, row: str) -> None:
    table = tables(name, nproc)
    sees_all = table.seen(row, "process_group") == table.counts(row)
    assert sees_all == (row not in ISSUED_BY_CPP)


@each_row
@pytest.mark.parametrize("interception", ["auto", "dispatcher", "process_group"])
def test_waits_are_matched_and_no_hook_fails(
    tables: Tables, name: str, nproc: int, row: str, interception: str
) -> None:
    for trace in tables(name, nproc).recorded(row, interception):
        if trace is not None:
            assert trace.trailer is not None
            waits_in_cpp = interception == "process_group" and row in ISSUED_BY_CPP
            assert waits_in_cpp or trace.trailer.unmatched_waits == 0
            assert not trace.trailer.failed_hooks


def test_an_optimizer_that_steps_another_counts_its_steps_once(tables: Tables) -> None:
    for trace in tables("ROWS", 2).recorded("zero_redundancy_optimizer", "auto"):
        assert trace is not None
        assert len(trace.steps) == 2
