"""Each way to communicate is on record once, with the operations and bytes that torch counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.dist.launch import launch
from tests.dist.programs.wire_rows import COMPILED, MESH, ROWS
from tests.dist.programs.wire_table import INTERCEPTIONS
from tests.dist.wire import BARE, PROGRAM, RANKS, Table

pytestmark = pytest.mark.dist

CASES = [
    *(pytest.param("ROWS", row, id=row) for row in ROWS),
    *(pytest.param("COMPILED", row, id=row, marks=pytest.mark.long) for row in COMPILED),
    *(pytest.param("MESH", row, id=row, marks=pytest.mark.long) for row in MESH),
]
each_row = pytest.mark.parametrize(("name", "row"), CASES)

Tables = Callable[[str], Table]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Runs a table when it is first asked for."""

    @cache
    def table(name: str) -> Table:
        out, nproc = tmp_path_factory.mktemp(name), RANKS[name]
        launch(
            PROGRAM, nproc, args=[out / "oracle", name, "--oracle"], env=BARE, imported="compiler"
        ).check()
        launch(PROGRAM, nproc, args=[out / "traces", name], imported="compiler").check()
        return Table(out / "oracle", out / "traces", nproc)

    return table


@each_row
@pytest.mark.parametrize("interception", [way for way in INTERCEPTIONS if way != "process_group"])
def test_all_is_seen_that_torch_counts(
    tables: Tables, name: str, row: str, interception: str
) -> None:
    table = tables(name)
    counts = table.counts(row)
    assert all(counts), "the oracle saw nothing"
    assert table.seen(row, interception) == counts


@each_row
def test_methods_see_what_python_issues(tables: Tables, name: str, row: str) -> None:
    assert tables(name).agrees(row, "process_group")


@each_row
@pytest.mark.parametrize("interception", INTERCEPTIONS)
def test_waits_are_matched_and_no_hook_fails(
    tables: Tables, name: str, row: str, interception: str
) -> None:
    assert not list(tables(name).faults(row, interception))


def test_an_optimizer_that_steps_another_counts_its_steps_once(tables: Tables) -> None:
    for trace in tables("ROWS").recorded("zero_redundancy_optimizer", "auto"):
        assert trace is not None
        assert len(trace.steps) == 2
