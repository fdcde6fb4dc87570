"""What dsprof records of DeepSpeed ZeRO equals what torch and DeepSpeed count themselves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsprof.analysis.run.traffic_differences import Line
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from tests.dist.launch import PROGRAMS, launch
from tests.dist.traces import asked_and_sent, operations
from tests.dist.zero_settings import ZeroSetting, zero_settings

pytestmark = pytest.mark.dist

COUNTED_STEPS = 3

TABLES = [
    pytest.param((2, (0, 1, 2, 3)), id="2 ranks"),
    pytest.param((4, (2, 3)), id="4 ranks", marks=pytest.mark.long),
]


@dataclass(frozen=True)
class Row:
    """One rank under one setting: the oracle's counts and the steps that they cover in a trace."""

    oracle: dict[str, Any]
    trace: RankTrace
    steps: list[int]


@dataclass(frozen=True)
class Table:
    """A run with the oracle and one with dsprof."""

    oracle: Path
    traces: Path
    settings: list[ZeroSetting]
    nproc: int

    def rows(self) -> Iterator[Any]:
        for setting in self.settings:
            for rank in range(self.nproc):
                counts = json.loads((self.oracle / f"{setting}.rank{rank}.json").read_text())
                [file] = (self.traces / str(setting)).glob(f"*.rank{rank:05d}.json")
                trace = read_trace(file)
                steps = [step.step for step in trace.steps[-COUNTED_STEPS:]]
                yield setting, Row(counts, trace, steps)


@pytest.fixture(scope="module", params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    nproc, stages = request.param
    out = tmp_path_factory.mktemp("truth")
    program, args = PROGRAMS / "truth_table.py", ["--stages", *stages]
    bare = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # torch imports what offers itself, dsprof too
    launch(
        program, nproc, args=[out / "oracle", "--oracle", *args], env=bare, imported="compiler"
    ).check()
    launch(program, nproc, args=[out / "traces", *args], imported="compiler").check()
    return Table(out / "oracle", out / "traces", list(zero_settings(stages)), nproc)


def counted_rows(row: Row) -> np.ndarray:
    return np.flatnonzero(np.isin(row.trace.collectives.step, row.steps))


def test_operations_and_bytes_on_the_wire_are_those_that_torch_counts(table: Table) -> None:
    for setting, row in table.rows():
        seen = operations(row.trace, counted_rows(row))
        assert seen == row.oracle["ops"], f"{setting} rank {row.trace.rank}"


def test_requested_operations_are_those_that_deepspeed_logs(table: Table) -> None:
    for setting, row in table.rows():
        comm = row.trace.collectives
        requests = {
            (int(comm.request[i]), comm.words[comm.requested[i]]) for i in counted_rows(row)
        }
        seen = Counter(name for _, name in requests)
        assert seen == Counter(row.oracle["requested"]), f"{setting} rank {row.trace.rank}"


def test_flushes_hold_what_the_bucket_held(table: Table) -> None:
    for setting, row in table.rows():
        flushes = [flush for flush in row.trace.flushes if flush.step in row.steps]
        seen = [[flush.elements, flush.cause] for flush in flushes if flush.stage > 0]
        assert seen == row.oracle["flushes"], f"{setting} rank {row.trace.rank}"


def test_each_flush_names_the_operations_that_carried_its_elements(table: Table) -> None:
    for setting, row in table.rows():
        comm = row.trace.collectives
        for flush in row.trace.flushes:
            carried = int(comm.elements[comm.flush == flush.id].sum())
            assert carried == flush.elements, f"{setting} rank {row.trace.rank} {flush}"


def test_every_wait_is_matched_to_its_collective(table: Table) -> None:
    for setting, row in table.rows():
        assert row.trace.trailer is not None
        assert row.trace.trailer.unmatched_waits == 0, f"{setting} rank {row.trace.rank}"
        assert not row.trace.trailer.failed_hooks, f"{setting} rank {row.trace.rank}"


def test_the_model_of_the_configuration_gives_every_byte_and_operation(table: Table) -> None:
    for setting, row in table.rows():
        lines = asked_and_sent(row.trace)
        modelled = [line for line in lines.values() if line.expected_bytes is not None]
        where = f"{setting} rank {row.trace.rank}"
        assert len(modelled) == (1 if setting.stage == 0 else 2), where
        for line in modelled:
            assert line.expected_bytes == (line.nbytes, line.nbytes), f"{where}: {line}"
            assert line.verdict == "as asked", f"{where}: {line}"
        assert_calls(setting, lines["gradients"], where)
        sent = sum(line.nbytes for line in lines.values()) * len(row.steps)
        assert sent == sum(nbytes for _, nbytes in row.oracle["ops"].values()), where


def assert_calls(setting: ZeroSetting, line: Line, where: str) -> None:
    """One collective a flush; a reduce goes to each owner in it, of which there are one or more."""
    assert line.expected_calls is not None, where
    low, high = line.expected_calls
    to_owners = setting.stage in (1, 2) and setting.reduce_scatter and not setting.multi_rank
    assert line.families == (("reduce",) if to_owners else (family_of(setting),)), where
    assert low <= line.calls <= high if to_owners else low == line.calls == high, where


def family_of(setting: ZeroSetting) -> str:
    return "reduce_scatter" if setting.stage == 3 and setting.reduce_scatter else "all_reduce"
