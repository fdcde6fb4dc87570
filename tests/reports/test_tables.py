"""Tables of a diagnosis."""

from __future__ import annotations

import msgspec
import pytest

from dsprof.analysis.hang.model import GroupWaits
from dsprof.diagnosis.parts.environment import EngineSettings, EnvironmentInfo
from dsprof.diagnosis.parts.run import ThresholdInfo
from dsprof.findings.finding import Table
from dsprof.reports import tables
from dsprof.reports.content import step_bars
from dsprof.reports.tables.listing import MAX_ROWS
from tests.factories import diagnosis as factory

MADE = factory.diagnosis(2, 4)

EVERY_TABLE = [
    tables.communication.communication(MADE.communication),
    tables.time.steps(step_bars(MADE.steps.rows, 10)),
    tables.call_sites.call_sites(MADE.call_sites),
    tables.communication.groups(MADE.topology.layouts),
    tables.communication.peer_traffic(MADE.peer_traffic),
    tables.communication.bucket_fill(MADE.bucket_fill.flushes),
    tables.communication.flushes(MADE.flushes),
    tables.communication.fetches(MADE.fetches),
    tables.communication.copies(MADE.copies),
    tables.time.annotated(MADE.annotations),
    tables.time.timeline(MADE.timelines[0]),
    tables.memory.memory(MADE.memory),
    tables.environment.differences(MADE.environment.differences),
    *tables.environment.environment(MADE.environment),
    tables.environment.configuration(MADE.environment),
    tables.environment.thresholds(MADE.thresholds),
    tables.environment.run(MADE),
]


@pytest.mark.parametrize("table", EVERY_TABLE, ids=lambda table: table.caption)
def test_each_row_has_one_cell_a_column_and_numbers_stand_in_number_columns(table: Table) -> None:
    assert table.rows
    for row in table.rows:
        assert len(row) == len(table.columns)
        for value, column in zip(row, table.columns, strict=True):
            assert not (isinstance(value, str) and column.kind != "text"), (column, value)


def column(table: Table, label: str) -> list[object]:
    index = [column.label for column in table.columns].index(label)
    return [row[index] for row in table.rows]


def test_the_most_exposed_collective_stands_first_and_times_are_of_one_step() -> None:
    table = tables.communication.communication(reversed(MADE.communication))
    assert column(table, "Exposed") == pytest.approx([61e6, 21.5e6, 1.9e6, None])
    assert column(table, "Group (ranks)")[0] == "default (2)"
    assert column(table, "Mode") == ["sync", "sync", "async", "sync, outside c10d"]


def test_the_device_of_a_profile_is_no_version() -> None:
    info = EnvironmentInfo(versions={"nccl": "2.27.3", "device": "NVIDIA H100"})
    found = {table.caption: table.rows for table in tables.environment.environment(info)}
    assert found == {"Versions": (("nccl", "2.27.3"),), "Devices": (("device", "NVIDIA H100"),)}


def test_ranks_of_a_hang_do_not_read_as_counts() -> None:
    table = tables.hangs.waits(
        [GroupWaits(group="world", name="0", ranks=(0, 1, 2), waiting=(0, 2), absent=(1,))]
    )
    assert (column(table, "Waiting"), column(table, "Not joined")) == (["ranks 0, 2"], ["rank 1"])


def test_a_collective_that_stands_in_for_another_names_it() -> None:
    operations = column(tables.communication.communication(MADE.communication), "Operation")
    assert operations[0] == "all_reduce (requested: reduce)"
    assert operations[2] == "all_reduce"


def test_what_a_profile_does_not_tell_of_a_collective_is_not_known() -> None:
    table = tables.communication.communication([factory.unknown_collective()])
    for label, cell in {
        "Operation": "send_recv",
        "Group (ranks)": "unknown",
        "Size": "unknown",
        "Bytes": None,
    }.items():
        assert column(table, label) == [cell]
    named = msgspec.structs.replace(factory.unknown_collective(), group="experts")
    assert column(tables.communication.communication([named]), "Group (ranks)") == [
        "experts (ranks unknown)"
    ]


def test_a_flush_is_shown_by_itself_and_a_missing_slot_is_no_number() -> None:
    flush = MADE.flushes[0]
    rows = [
        msgspec.structs.replace(flush, flushes=40, wire_calls=120, flushes_per_step=5.0),
        msgspec.structs.replace(flush, slot=None),
    ]
    table = tables.communication.flushes(rows)
    assert column(table, "Flushes per step")[0] == 5.0
    assert column(table, "Collectives")[0] == 3
    assert column(table, "Slot") == ["0", None]


def test_a_column_that_no_row_fills_is_left_out() -> None:
    module = msgspec.structs.replace(
        MADE.flushes[0], library="FSDP2", module="0", capacity=0, fill=None, slot=None
    )
    labels = {column.label for column in tables.communication.flushes([module]).columns}
    assert labels.isdisjoint({"Capacity", "Fill", "Slot"})
    both = tables.communication.flushes([module, MADE.flushes[0]])
    assert column(both, "Capacity") == [None, 5_000_000]
    bars = step_bars(MADE.steps.rows, 10)
    assert "Copies" not in [column.label for column in tables.time.steps(bars).columns]
    assert None not in column(tables.time.steps(bars), "Idle")


def test_fetches_are_of_one_step_of_one_rank() -> None:
    made = factory.diagnosis(ranks=2, steps=4).fetches[0]
    fetch = msgspec.structs.replace(made, calls=80, calls_per_step=10.0, elements=160, wait_ns=400)
    table = tables.communication.fetches([fetch])
    assert [column(table, name) for name in ("Calls", "Elements", "Waited")] == [[10], [20], [50]]
    assert "Parameters per rank and step" in table.caption


def test_what_the_user_wrote_stands_before_the_defaults() -> None:
    table = tables.environment.configuration(MADE.environment)
    assert [row for row in table.rows if "stage" in str(row[0])] == [
        ("zero_optimization.stage", "2", "2")
    ]
    assert column(table, "Written") == ["true", "2", "(default)", "(default)"]


def test_a_variable_that_changed_is_shown_once_more_and_a_secret_never() -> None:
    shown = {table.caption: table for table in tables.environment.environment(MADE.environment)}
    changed = shown["Changed after start-up, before communication began"]
    assert changed.rows == (("OMP_NUM_THREADS", "2"),)
    assert ("NCCL_SECRET", "<redacted>") in shown["Variables"].rows


def test_the_machine_stands_beside_its_devices() -> None:
    shown = {table.caption: table for table in tables.environment.environment(MADE.environment)}
    assert ("nvidia_driver", "550.54.15 proprietary") in shown["Machine"].rows
    assert ("library", "/opt/nccl/lib/libnccl.so.2") in shown["Machine"].rows
    assert {"accelerator", "adapter", "network"} == {row[0] for row in shown["Devices"].rows}


def test_an_unset_variable_is_not_an_empty_one() -> None:
    table = tables.environment.differences(MADE.environment.differences)
    assert table.rows == (("NCCL_IB_HCA", "mlx5_0", "0"), ("NCCL_IB_HCA", "(unset)", "1"))


def test_a_long_table_is_cut_and_says_so() -> None:
    rows = [ThresholdInfo(rule="r", name=str(i), value=i) for i in range(MAX_ROWS + 7)]
    table = tables.environment.thresholds(rows)
    assert len(table.rows) == MAX_ROWS
    assert "7 more rows left out" in table.caption
    assert "(1 more row left out)" in tables.environment.thresholds(rows[: MAX_ROWS + 1]).caption


def test_a_group_is_told_by_its_role_and_its_ranks():
    row = MADE.communication[0]
    role = {"group": "mesh_dp", "role": "data", "group_size": 2}
    named = msgspec.structs.replace(row, **role, group_ranks=[[0, 2], [1, 3]])
    cells = tables.communication.communication([named, msgspec.structs.replace(row, **role)]).rows
    assert cells[0][1] == "data parallel, mesh_dp (ranks 0, 2; 1, 3)"
    assert cells[1][1] == "data parallel, mesh_dp (2)"


def test_settings_of_several_engines_stand_in_one_table_with_their_number() -> None:
    engines = [
        EngineSettings(engine=number, written={"zero_optimization": {"stage": number}})
        for number in (1, 3)
    ]
    table = tables.environment.configuration(EnvironmentInfo(engines=engines))
    assert "Engine" in [column.label for column in table.columns]
    assert [row[:3] for row in table.rows] == [
        ("1", "zero_optimization.stage", "1"),
        ("3", "zero_optimization.stage", "3"),
    ]
