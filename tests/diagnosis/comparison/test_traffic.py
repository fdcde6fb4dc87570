"""Calls and bytes of two runs: compared exactly, step by step."""

from __future__ import annotations

import re

import msgspec
import pytest

from dsprof.diagnosis.build import diagnosis_of
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.communication import CommunicationRow
from dsprof.reports.comparison.tables import sections
from tests.diagnosis.comparison.compared import compared, row, with_rows
from tests.factories import diagnosis as factory
from tests.factories.trace import summary, zero_rank


def test_steps_that_a_rank_did_not_record_are_no_fewer_calls() -> None:
    whole, early = (
        diagnosis_of(summary(zero_rank(0, steps=60), zero_rank(1, steps=steps)), {})
        for steps in (60, 40)
    )
    made = compared(whole, early)
    assert not any(one.is_changed for one in [*made.operations, *made.kinds])
    assert made.summary.startswith("The same calls and bytes; ")


def test_operations_are_compared_exactly() -> None:
    before = with_rows(row(), row("broadcast", 160, 160))
    after = with_rows(row(nbytes=1601), row("all_gather", 320, 320))
    made = compared(before, after)
    seen = {one.op: one for one in made.operations}
    assert all(one.is_changed for one in made.operations)
    assert (seen["all_reduce"].before_bytes, seen["all_reduce"].after_bytes) == (10, 1601 / 160)
    assert (seen["broadcast"].before_calls, seen["broadcast"].after_calls) == (1, 0)
    assert (seen["all_gather"].before_calls, seen["all_gather"].after_calls) == (0, 2)
    assert made.summary.startswith("1 more call (+50 %) and ")


def test_runs_of_different_length_are_compared_step_by_step() -> None:
    """3 of 7 a step and 6 of 14: no float says so exactly."""
    before = with_rows(row(calls=3 * 14, nbytes=70 * 14), steps=9)
    after = with_rows(row(calls=6 * 14, nbytes=140 * 14), steps=16)
    assert not compared(before, after).operations[0].is_changed


def once(steps: int, *, reduces: int = 1, last: int = 1) -> Diagnosis:
    """A run of two ranks that all-reduce in each measured step, and `last` times after these."""
    ranks, measured = 2, steps - 2
    calls = ranks * (reduces * measured + last)
    sent = ranks * (1000 * measured + 4 * last)
    return with_rows(row(calls=calls, nbytes=sent), steps=steps)


def test_calls_once_in_a_run_do_not_differ_by_the_number_of_steps() -> None:
    made = compared(once(40), once(60))
    assert made.operations[0].before_calls != made.operations[0].after_calls
    assert made.summary.startswith("The same calls and bytes; ")
    [table] = [table for name, table in sections(made) if name == "Operations and bytes"]
    assert table.rows[0][2] == "1,000 B"
    assert compared(once(40), once(60, last=5)).operations[0].is_changed


def test_bytes_once_in_a_run_are_not_reported_beside_changed_calls() -> None:
    summary = compared(once(40), once(60, reduces=3)).summary
    start = r"1\.99 more calls \(\+194 %\) and the same number of bytes per rank and step; "
    assert re.match(start, summary)


def test_what_moved_off_the_wire_is_the_same_operation_and_another_kind() -> None:
    made = compared(with_rows(row()), with_rows(row(on_wire=False)))
    assert [one.is_changed for one in made.operations] == [False]
    assert [(one.on_wire, one.before_calls, one.after_calls) for one in made.kinds] == [
        (False, 0, 1),
        (True, 1, 0),
    ]


def test_rows_that_differ_in_the_request_alone_are_one_kind() -> None:
    two = row(calls=80, nbytes=800, requested="reduce"), row(calls=80, nbytes=800)
    made = compared(with_rows(*two), with_rows(row()))
    assert [one.is_changed for one in made.kinds] == [False]


def test_the_group_of_all_ranks_is_one_whatever_it_is_called() -> None:
    before, after = with_rows(row(role="data")), with_rows(row(group="default", role=""))
    assert [one.is_changed for one in compared(before, after).kinds] == [False]
    for made in (before, after):
        made.run.world_size = 4
    assert [one.is_changed for one in compared(before, after).kinds] == [True, True]


def test_runs_without_steps_are_compared_all_the_same() -> None:
    made = compared(factory.empty(), factory.empty())
    assert made.verdict.startswith("Step times not compared: ")
    assert made.summary.startswith("No collective was recorded")


def without_steps(*rows: CommunicationRow) -> Diagnosis:
    made = factory.empty()
    made.communication = list(rows)
    return made


def test_runs_without_steps_are_compared_per_rank() -> None:
    one, two = without_steps(row()), without_steps(row(), row(op="broadcast"))
    assert " per rank;" in compared(one, two).summary
    two.history.newest_ns = 4_000_000_000
    made = compared(one, two)
    assert made.traffic_not_compared == "only records of the last 4.00 s are kept after"
    assert made.operations == []


def test_a_record_without_steps_is_not_one_of_a_single_step() -> None:
    made = compared(with_rows(row()), without_steps(row()))
    assert (made.operations, made.kinds) == ([], [])
    assert made.traffic_not_compared == "no step was measured after"
    assert made.summary.startswith("Calls and bytes not compared: no step was measured after")


@pytest.mark.parametrize(("is_recorded", "is_compared"), [(True, True), (False, False)])
def test_files_that_hold_no_collective_are_not_a_run_without_any(
    is_recorded: bool, is_compared: bool
) -> None:
    silent = with_rows()
    silent.quality = msgspec.structs.replace(silent.quality, is_recorded=is_recorded)
    made = compared(silent, with_rows(row()))
    assert bool(made.operations) is is_compared
    assert ("other tools before hold no collective" in made.summary) is not is_compared


UNSIZED = {"size_class": "not known", "nbytes": 0}


def test_bytes_that_are_not_known_are_not_called_the_same() -> None:
    made = compared(with_rows(row()), with_rows(row(**UNSIZED)))
    assert made.summary.startswith("The same calls; not all bytes are known")
    assert [(one.before_calls, one.after_calls) for one in made.kinds] == [(1, 1)]
    [told] = [table.rows[0][-1] for name, table in sections(made) if name == "Operations and bytes"]
    assert told == "same calls, bytes unknown"


def of_tool(*rows: CommunicationRow) -> Diagnosis:
    made = with_rows(*rows)
    made.quality.is_recorded = False
    return made


def test_what_tools_spell_differently_is_one_operation() -> None:
    kernel = row("all_reduce", group="unknown", group_size=None, role="", dtype="", **UNSIZED)
    named = row("allreduce", dtype="BFloat16")
    made = compared(of_tool(kernel), of_tool(named))
    assert made.summary.startswith("The same calls; not all bytes are known")
    assert [(one.op, one.is_changed) for one in made.operations] == [("all_reduce", False)]
    assert [(one.dtype, one.is_changed) for one in made.kinds] == [("", False)]


def test_a_recording_and_a_profile_are_compared_by_operation_only() -> None:
    made = compared(with_rows(row("allreduce_")), of_tool(row("all_reduce")))
    assert [one.is_changed for one in made.operations] == [False]
    assert made.kinds == []


def test_what_dsprof_recorded_is_compared_as_it_was_called() -> None:
    made = compared(with_rows(row("allgather_")), with_rows(row("_allgather_base_")))
    assert [one.is_changed for one in made.operations] == [True, True]


def test_operations_that_take_the_place_of_others_are_told() -> None:
    made = compared(with_rows(row()), with_rows(row("broadcast")))
    assert made.summary.startswith("Other operations, with the same number of calls and bytes")


def test_sums_of_means_differ_by_more_than_rounding() -> None:
    tenths = [row(op, 16 * tenth) for op, tenth in (("a", 1), ("b", 2), ("c", 3))]
    turned = [row(op, 16 * tenth) for op, tenth in (("a", 3), ("b", 1), ("c", 2))]
    assert compared(with_rows(*tenths), with_rows(*turned)).summary.startswith("Other operations")


def test_groups_of_unknown_size_are_compared() -> None:
    before, after = (row(group="data", group_size=size) for size in (None, 4))
    made = compared(with_rows(before), with_rows(after))
    named = next(table.rows for name, table in sections(made) if name == "Operations in detail")
    assert {cells[0].split(", ")[1] for cells in named} == {"4 ranks", "group of unknown size"}
