"""Two diagnoses side by side: what is said to have changed, and what is not."""

from __future__ import annotations

import re
from statistics import median
from typing import Any

import msgspec
import pytest

from dsprof.diagnosis.build import diagnosis_of
from dsprof.diagnosis.comparison.build import compare
from dsprof.diagnosis.comparison.model import Change, Comparison, TimeChange
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.communication import CommunicationRow
from dsprof.diagnosis.parts.environment import EngineSettings, EnvironmentInfo
from dsprof.diagnosis.parts.steps import Steps
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.formatting import duration
from dsprof.reports.comparison.tables import sections
from tests.factories import diagnosis as factory
from tests.factories.trace import summary, zero_rank

MS = 1_000_000


def compared(before: Diagnosis, after: Diagnosis) -> Comparison:
    return compare(before, after, ("one", "two"))


def run(steps: int = 40, **changes: Any) -> Diagnosis:
    return factory.diagnosis(2, steps, **changes)


def environment(**changes: Any) -> Diagnosis:
    return run(environment=msgspec.structs.replace(factory.environment(), **changes))


def slower(made: Diagnosis, factor: float, part: str = "compute_ns") -> Diagnosis:
    """The run with one part of each step, and the step with it, stretched."""
    rows = []
    for row in made.steps.rows:
        more = round(getattr(row, part) * (factor - 1))
        longer = {part: getattr(row, part) + more, "total_ns": row.total_ns + more}
        rows.append(msgspec.structs.replace(row, **longer))
    return msgspec.structs.replace(made, steps=msgspec.structs.replace(made.steps, rows=rows))


def times(comparison: Comparison) -> dict[str, TimeChange]:
    return {one.part: one for one in comparison.times}


def test_a_run_does_not_differ_from_itself() -> None:
    made = compared(run(), run())
    assert (made.unlike, made.configuration, made.environment, made.versions) == ([], [], [], [])
    assert not any(one.is_changed for one in [*made.operations, *made.kinds])
    assert {one.fate for one in made.findings} == {"still there"}
    assert {one.judgement for one in made.times} <= {"same", "inconclusive"}
    assert made.verdict == "Before and after are the same run"
    assert made.summary.startswith("The same calls and bytes; ")
    assert "configuration, environment and versions are the same." in made.summary


def of_ranks(made: Diagnosis, ranks: int, steps: slice, factor: float) -> Diagnosis:
    """The run with steps of so many ranks, which are longer or shorter in the mean."""
    for row in made.steps.rows[steps]:
        row.ranks, row.total_ns = ranks, round(row.total_ns * factor)
    return made


def test_steps_that_a_rank_did_not_record_are_not_compared() -> None:
    """Rank 1 is slower, and recorded no steps at the end: without it the mean is shorter."""
    before, after = (of_ranks(run(), 2, slice(None), 1) for _ in range(2))
    total = times(compared(before, of_ranks(after, 1, slice(22, None), 0.7)))["total"]
    assert total.judgement in ("same", "inconclusive")
    assert total.after_ns == pytest.approx(total.before_ns, rel=0.01)


def test_steps_of_more_ranks_are_not_judged() -> None:
    before, after = of_ranks(run(), 2, slice(None), 1), of_ranks(run(), 1, slice(10, None), 0.7)
    made = compared(before, after)
    assert times(made)["total"].judgement == "not compared"
    why = "the steps are of 2 ranks before, of 1 rank after"
    assert made.verdict == f"Step times not compared: {why}"


def test_steps_that_a_rank_did_not_record_are_no_fewer_calls() -> None:
    whole, early = (
        diagnosis_of(summary(zero_rank(0, steps=60), zero_rank(1, steps=steps)), {})
        for steps in (60, 40)
    )
    made = compared(whole, early)
    assert not any(one.is_changed for one in [*made.operations, *made.kinds])
    assert made.summary.startswith("The same calls and bytes; ")


def test_runs_of_which_other_ranks_were_recorded_are_not_comparable() -> None:
    info = run().run
    other = run(run=msgspec.structs.replace(info, ranks=info.ranks[1:]))
    assert compared(run(), other).unlike == ["recorded ranks: 0-1 before, 1 after"]


def test_where_noise_hides_a_change_the_verdict_names_the_smallest_that_would_show() -> None:
    shaken = run()
    for row in shaken.steps.rows[20:]:
        row.total_ns = round(row.total_ns * 1.3)
    made = compared(run(), shaken)
    total = times(made)["total"]
    assert total.judgement == "inconclusive"
    assert total.low_ns is not None
    assert total.high_ns is not None
    hidden = duration((total.high_ns - total.low_ns) / 2)
    assert made.verdict.startswith("Within the noise: ")
    assert made.verdict.endswith(f". Record more steps: a change below {hidden} does not show")


def test_without_deepspeed_no_configuration_is_called_alike() -> None:
    made = environment(written_config={}, effective_config={}, engines=[])
    summary = compared(made, made).summary
    assert summary.endswith("; environment and versions are the same.")


@pytest.mark.parametrize(("sides", "told"), [((True, False), "after"), ((False, True), "before")])
def test_settings_that_were_not_recorded_are_not_called_equal_or_changed(sides, told) -> None:
    runs = [run() if is_there else run(environment=EnvironmentInfo()) for is_there in sides]
    made = compared(*runs)
    assert (made.unrecorded, made.environment, made.versions) == ([told], [], [])
    assert made.summary.endswith(f"not recorded {told}.")


def test_versions_alone_are_no_settings() -> None:
    made = run(environment=EnvironmentInfo(versions={"nccl": "2.21.5"}))
    made.quality.is_recorded = False
    comparison = compared(made, made)
    assert comparison.unrecorded == ["before", "after"]
    assert comparison.summary.endswith("not recorded before and after.")


def test_an_environment_that_was_not_recorded_is_not_called_the_same() -> None:
    config = {"zero_optimization": {"stage": 2}}
    made = run(environment=EnvironmentInfo(written_config=config))
    made.run.versions = {}
    assert compared(made, made).summary.endswith("; configuration is the same.")


def test_an_exposed_time_that_is_not_known_is_not_zero() -> None:
    made = run()
    first = made.communication[0]
    lost = msgspec.structs.replace(first, phase="forward", exposed_ns=None)
    found = compared(msgspec.structs.replace(made, communication=[first, lost]), made)
    (one,) = (change for change in found.operations if change.op == first.op)
    assert (one.before_exposed_ns, one.after_exposed_ns is None) == (None, False)


def test_a_longer_part_is_found_and_the_others_are_not() -> None:
    found = times(compared(run(), slower(run(), 1.5)))
    assert found["compute"].judgement == found["total"].judgement == "slower"
    assert found["exposed_comm"].judgement != "slower"
    low, high = found["total"].low_ns, found["total"].high_ns
    assert low is not None
    assert high is not None
    assert low < 0.5 * 303 * MS < high
    assert times(compared(slower(run(), 1.5), run()))["total"].judgement == "faster"


@pytest.mark.parametrize("factor", [0.5, 0.8, 0.97, 0.99, 1.0, 1.01, 1.03, 1.2, 1.5])
def test_a_range_excludes_zero_exactly_where_a_change_is_claimed(factor: float) -> None:
    for one in compared(run(), slower(run(), factor)).times:
        if one.low_ns is not None and one.high_ns is not None:
            excludes_zero = one.low_ns > 0 or one.high_ns < 0
            assert excludes_zero == (one.judgement in ("faster", "slower")), one


def test_the_verdict_is_one_line_with_share_times_and_interval() -> None:
    faster, longer = (
        compared(*pair).verdict for pair in ((slower(run(), 2), run()), (run(), slower(run(), 2)))
    )
    assert re.fullmatch(
        r"\d+ % faster: \d+ → \d+ ms per step \(99 % interval \d+\N{EN DASH}\d+ ms\)", faster
    )
    assert re.match(
        r"\d+ % slower: \d+ → \d+ ms per step \(99 % interval \d+\N{EN DASH}\d+ ms\)", longer
    )


def test_slow_steps_that_the_median_does_not_show_are_in_the_verdict() -> None:
    """A checkpoint makes every tenth step three times as long."""
    before, after = run(), run()
    for row in after.steps.rows[9::10]:
        row.total_ns *= 3
    verdict = compared(before, after).verdict
    assert "The mean is " in verdict
    assert verdict.endswith("outliers among the steps take more time")
    assert compared(after, before).verdict.endswith("outliers among the steps take less time")
    assert "mean" not in compared(before, slower(before, 2)).verdict


def test_steps_before_a_run_has_settled_are_left_out() -> None:
    made = run()
    typical = msgspec.structs.replace(made.steps.typical, settled_from=20)
    settled = msgspec.structs.replace(made.steps, typical=typical)
    found = times(compared(made, msgspec.structs.replace(made, steps=settled)))["total"]
    later = [row.total_ns for row in made.steps.rows if row.step >= 20]
    assert found.after_ns == median(later) != found.before_ns


def test_a_difference_below_the_tolerance_is_none() -> None:
    made = run()
    steady = msgspec.structs.replace(made.steps.rows[5], step=5)
    alike = [msgspec.structs.replace(steady, step=number) for number in range(40)]
    still = msgspec.structs.replace(made, steps=Steps(total=made.steps.total, rows=alike))
    assert times(compared(still, slower(still, 1.01)))["total"].judgement == "same"
    assert times(compared(still, slower(still, 1.10)))["total"].judgement == "slower"


def test_too_few_steps_are_not_judged() -> None:
    total = times(compared(run(6), run()))["total"]
    assert (total.judgement, total.low_ns) == ("not compared", None)
    assert total.why == "the earlier run has only 4 measured steps; record at least 8 in each"


def test_a_run_of_a_moment_is_not_judged() -> None:
    made = run()
    rows = [msgspec.structs.replace(row, total_ns=row.total_ns // 10) for row in made.steps.rows]
    short = msgspec.structs.replace(made, steps=msgspec.structs.replace(made.steps, rows=rows))
    total = times(compared(made, short))["total"]
    assert total.judgement == "not compared"
    has = "the later run has only 1.63 s of measured steps"
    assert total.why == f"{has}; record at least 5 s in each"


def test_what_one_run_did_not_measure_is_not_judged() -> None:
    made = run()
    blind = [msgspec.structs.replace(row, compute_ns=None) for row in made.steps.rows]
    other = msgspec.structs.replace(made, steps=msgspec.structs.replace(made.steps, rows=blind))
    compute = times(compared(made, other))["compute"]
    assert (compute.after_ns, compute.judgement) == (None, "not compared")
    assert "copies" not in times(compared(made, made))  # measured in neither


def test_the_rest_is_not_judged_where_only_one_run_shows_a_part_of_it() -> None:
    """Computation that a run could not measure is in the rest of its steps."""
    made = run()
    blind = [
        msgspec.structs.replace(row, compute_ns=None, other_ns=row.other_ns + row.compute_ns)
        for row in made.steps.rows
    ]
    other = msgspec.structs.replace(made, steps=msgspec.structs.replace(made.steps, rows=blind))
    for found in (times(compared(other, made)), times(compared(made, other))):
        assert found["other"].judgement == "not compared"
        assert found["other"].why == "other contains parts that only some of the steps show"
    assert times(compared(other, slower(other, 1.5, "other_ns")))["other"].judgement == "slower"


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (factory.diagnosis(4, 40), "ranks: 2 before, 4 after"),
        (run(run=msgspec.structs.replace(run().run, device="cuda")), "device: cpu before"),
        (
            run(run=msgspec.structs.replace(run().run, parameters=1_000_000)),
            "parameters of the model: 262,144 before, 1,000,000 after",
        ),
        (environment(effective_config={"train_batch_size": 16}), "batch of a step: 8 samples"),
    ],
)
def test_runs_of_unlike_kinds_are_said_to_be_so(other: Diagnosis, reason: str) -> None:
    first = environment(effective_config={"train_batch_size": 8})
    first.run.parameters = 262_144
    made = compared(first, other)
    assert len(made.unlike) == 1
    assert made.unlike[0].startswith(reason)
    assert made.verdict.startswith(f"Not comparable ({reason}")
    assert {one.judgement for one in made.times} == {"not compared"}


def test_the_same_batch_in_other_micro_steps_is_the_same_work() -> None:
    first = environment(effective_config={"train_batch_size": 8})
    other = environment(effective_config={"train_batch_size": 8})
    for row in other.steps.rows:
        row.micro_steps = 4
    assert compared(first, other).unlike == []
    for made in (first, other):
        made.environment.effective_config.clear()
    assert compared(first, other).unlike == [
        "batch of a step: 2 micro-steps before, 4 micro-steps after"
    ]


def test_of_ddp_and_deepspeed_the_framework_and_what_was_written_are_listed() -> None:
    """Without a DeepSpeed configuration before, its defaults after are no change of a user's."""
    before = environment(written_config={}, effective_config={})
    after = environment(
        written_config={"zero_optimization": {"stage": 2}},
        effective_config={"zero_optimization": {"stage": 1, "overlap_comm": True}, "dump": False},
    )
    before.run.setup, after.run.setup = "", "DeepSpeed ZeRO-1"
    assert compared(before, after).configuration == [
        Change(name="framework", before="no DeepSpeed configuration", after="DeepSpeed ZeRO-1"),
        Change(name="zero_optimization.stage", before=None, after="1"),
    ]


def test_of_several_engines_the_settings_of_each_are_compared() -> None:
    before, after = (
        environment(
            written_config={},
            effective_config={"gradient_clipping": 1.0},
            engines=[
                EngineSettings(engine=0, effective={"gradient_clipping": 1.0}),
                EngineSettings(engine=1, effective={"gradient_clipping": clipping}),
            ],
        )
        for clipping in (1.0, 2.0)
    )
    assert compared(before, after).configuration == [
        Change(name="engine 1: gradient_clipping", before="1.0", after="2.0")
    ]


def test_settings_are_compared_by_their_full_names() -> None:
    before = environment(
        written_config={},
        effective_config={"zero_optimization": {"stage": 2, "overlap_comm": False}},
        variables={"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring"},
    )
    after = environment(
        written_config={},
        effective_config={"zero_optimization": {"stage": 3, "overlap_comm": False}, "fp16": {}},
        variables={"NCCL_DEBUG": "INFO", "NCCL_PROTO": "LL"},
        effective={},
        gpus=["A100", "A100"],
    )
    after.run.versions = {**after.run.versions, "torch": "2.14.0"}
    after.environment.versions = {}
    made = compared(before, after)
    assert made.configuration == [
        Change(name="fp16", before=None, after="{}"),
        Change(name="zero_optimization.stage", before="2", after="3"),
    ]
    assert {one.name: (one.before, one.after) for one in made.environment} == {
        "GPUs": (None, "2 x A100"),
        "NCCL_ALGO": ("Ring", None),
        "NCCL_DEBUG": ("WARN", "INFO"),
        "NCCL_PROTO": (None, "LL"),
        "OMP_NUM_THREADS": ("2", None),
    }
    assert made.versions == [Change(name="torch", before="2.13.0", after="2.14.0")]


def test_what_names_a_launch_is_no_setting() -> None:
    launch = {
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "x",
        "DSPROF_OUT": "a",
        "SLURM_JOB_ID": "7",
    }
    before = environment(variables=launch)
    after = environment(variables={name: f"{value}2" for name, value in launch.items()})
    assert compared(before, after).environment == []


def row(
    op: str = "all_reduce", calls: int = 160, nbytes: int = 1600, **fields: Any
) -> CommunicationRow:
    return CommunicationRow(
        **{
            "op": op,
            "requested": op,
            "group": "world",
            "group_size": 2,
            "phase": "backward",
            "size_class": "< 4 KiB",
            "dtype": "float32",
            "is_async": False,
            "on_wire": True,
            "calls": calls,
            "bytes": nbytes,
            "calls_per_step": 0.0,
            "bytes_per_step": 0.0,
            "in_flight_ns": None,
            "exposed_ns": None,
            "algbw": None,
            "busbw": None,
            **fields,
        }
    )


def with_rows(*rows: CommunicationRow, steps: int = 82) -> Diagnosis:
    return run(steps, communication=list(rows))


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


def finding(rule: str, status: Status, severity: Severity = Severity.NONE) -> Finding:
    return Finding(rule=rule, title=rule, status=status, severity=severity, summary=f"of {rule}")


def test_what_became_of_findings() -> None:
    low, high = Severity.LOW, Severity.HIGH
    fail, ok, unknown = Status.FAIL, Status.PASS, Status.UNKNOWN
    before = [
        finding("mended", fail, high),
        finding("blind", fail, high),
        finding("dropped", fail, low),
        finding("grown", fail, low),
        finding("shrunk", fail, high),
        finding("kept", fail, low),
        finding("passing", ok),
        finding("remark", Status.INFO),
        finding("lately", unknown),
    ]
    after = [
        finding("mended", ok),
        finding("blind", unknown),
        finding("grown", fail, high),
        finding("shrunk", fail, low),
        finding("kept", fail, low),
        finding("passing", ok),
        finding("remark", fail, low),
        finding("fresh", fail, high),
        finding("lately", fail, high),
    ]
    made = compared(run(findings=before), run(findings=after))
    assert {one.rule: (one.fate, one.before, one.after) for one in made.findings} == {
        "mended": ("gone", "high", "pass"),
        "blind": ("now unknown", "high", "unknown"),
        "dropped": ("now unknown", "low", ""),
        "grown": ("worse", "low", "high"),
        "shrunk": ("milder", "high", "low"),
        "kept": ("still there", "low", "low"),
        "remark": ("new", "info", "low"),
        "fresh": ("unknown before", "", "high"),
        "lately": ("unknown before", "unknown", "high"),
    }
    assert "1 new, 2 unknown before" in made.summary
    assert "1 gone" in made.summary


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
