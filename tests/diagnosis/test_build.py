from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from dsprof.analysis.aggregates.run import Run
from dsprof.diagnosis import build
from dsprof.diagnosis.build import diagnose, diagnosis_of
from dsprof.diagnosis.document import from_json, to_json
from dsprof.diagnosis.headline import verdict
from dsprof.diagnosis.model import Diagnosis
from dsprof.environment import EnvSnapshot
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.rules import RULES
from dsprof.rules.communication.communication_bound_step import CommunicationBoundStep
from dsprof.trace.dumps.memory_snapshot import MemorySnapshot
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import RunFiles, Stranger
from dsprof.trace.schema import (
    OF_ENVIRONMENT,
    EngineConfig,
    HookStatus,
    MemorySample,
    Note,
    Trailer,
)
from tests.factories import logs
from tests.factories.trace import (
    MS,
    captured,
    device_step,
    engine,
    enqueued,
    fetch,
    header,
    issued,
    rank_trace,
    span,
    stall,
    step,
    summary,
    sync,
    zero_rank,
)


def foreign(trace: RankTrace) -> RankTrace:
    """The trace as if another tool had written it."""
    return replace(trace, is_foreign=True)


def laid_out(active_bytes: int) -> MemorySnapshot:
    """A device of 8 GiB, without fragments."""
    cached = (8 << 30) - active_bytes
    return MemorySnapshot(0, 8 << 30, active_bytes, cached, 0, cached, 0, 0, 9, 1)


def diagnosed(*traces: RankTrace, **thresholds) -> Diagnosis:
    return diagnosis_of(summary(*traces), thresholds)


@pytest.fixture
def two_ranks(monkeypatch, tmp_path):
    """A run of two files, and how often each was read."""
    traces = {"rank0": zero_rank(0), "rank1": zero_rank(1)}
    reads: list[str] = []

    def read_rank(files):
        reads.append(files.path.name)
        return traces[files.path.name]

    monkeypatch.setattr("dsprof.trace.run.read_rank", read_rank)
    monkeypatch.setattr("dsprof.analysis.pool.read_rank", read_rank)
    files = tuple(tmp_path / name for name in traces)
    strangers = (Stranger(tmp_path / "old", "of an earlier run"),)
    return RunFiles(files, tuple(trace.header for trace in traces.values()), strangers), reads


def test_ranks_of_one_host_are_read_once(two_ranks):
    run, reads = two_ranks
    diagnosis = diagnose(run)
    assert reads == ["rank0", "rank1"]
    assert diagnosis.quality.clock_method == "one host: shared clock"
    assert "of an earlier run" in diagnosis.quality.strangers[0]


def test_ranks_of_several_hosts_are_read_for_their_clocks_first(two_ranks):
    run, reads = two_ranks
    one, other = run.headers
    other.host = "node-b"
    diagnosis = diagnose(replace(run, headers=(one, other)))
    assert reads == ["rank0", "rank1"] * 2
    assert "several hosts" in diagnosis.quality.clock_method


def test_every_rule_has_at_least_one_finding():
    findings = diagnosed(zero_rank(0), zero_rank(1)).findings
    assert {finding.rule for finding in findings} == {rule.meta.id for rule in RULES}


def test_run_says_who_and_what():
    run = diagnosed(zero_rank(0, accumulation=2), zero_rank(1)).run
    assert (run.world_size, run.ranks, run.hosts, run.steps) == (2, [0, 1], ["node-a"], 6)
    assert run.setup == "DeepSpeed ZeRO-2, bf16, accumulation 2"
    assert run.started == "2023-11-14T22:13:20Z"


def test_the_settings_of_several_engines_stand_each_by_itself():
    trace = zero_rank(0)
    two = {**trace.engines, 2: EngineConfig(2, written={"zero_optimization": {"stage": 3}})}
    found = diagnosed(replace(trace, engines=two))
    assert found.run.setup == "DeepSpeed ZeRO-2, bf16, accumulation 1; ZeRO-0, fp32, accumulation 1"
    assert [one.engine for one in found.environment.engines] == [1, 2]
    assert found.environment.engines[1].written == {"zero_optimization": {"stage": 3}}
    assert found.environment.written_config == found.environment.engines[0].written
    same = replace(trace, engines={1: engine(2), 2: engine(2)})
    setup = diagnosed(same).run.setup
    assert setup == "DeepSpeed ZeRO-2, bf16, accumulation 1 (2 engines)"


def test_one_engine_is_not_told_twice():
    assert diagnosed(zero_rank(0)).environment.engines == []


def test_parts_of_each_step_add_up_and_warmup_is_shown_but_not_counted():
    steps = diagnosed(zero_rank(0), zero_rank(1, comm_ms=8)).steps
    assert (len(steps.rows), steps.warmup_steps) == (6, 2)
    for part in (*steps.rows, steps.total):
        assert part.compute_ns + part.exposed_comm_ns + part.other_ns == part.total_ns
        assert part.copies_ns is None
        assert part.idle_ns is None
    assert steps.total.total_ns == 400 * MS
    assert steps.method.startswith("host clock")


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        (zero_rank(head=header(device="cuda")), "no device times"),
        (zero_rank(extra=lambda n, t: [issued("x", t, t + 1, step=n)]), "no wait for the"),
    ],
)
def test_parts_that_are_not_measurable_say_why(trace, why):
    steps = diagnosed(trace).steps
    assert steps.total.exposed_comm_ns is None
    assert steps.total.other_ns == steps.total.total_ns
    assert why in steps.method


def on_device(**fields):
    one = enqueued("all_reduce", 1, step=0, **fields)
    return rank_trace(
        comm=[one],
        stalls=[stall(one, "collective", 20, 50)],
        steps=[step(0, 0, 10)],
        device_steps=[device_step(0, 0, 100)],
        head=header(device="cuda", backend="nccl"),
    )


def test_a_run_on_a_device_is_measured_by_its_events():
    steps = diagnosed(on_device()).steps
    assert steps.method.startswith("device events")
    assert (steps.total.exposed_comm_ns, steps.total.compute_ns) == (30 * MS, None)
    assert steps.total.other_ns == 70 * MS


def test_graphs_are_named_as_what_cannot_be_measured():
    assert "CUDA graphs" in diagnosed(on_device(captured=True)).steps.method


def test_communication_is_per_rank_and_step_and_the_costliest_comes_first():
    def small(number, start):
        return [issued("all_gather", start, start + 1, wait=start, waited=start + 1, step=number)]

    first, second = diagnosed(zero_rank(0, extra=small), zero_rank(1, extra=small)).communication
    assert (first.op, second.op) == ("all_reduce", "all_gather")
    assert (first.calls, first.calls_per_step) == (8, 1.0)
    assert first.exposed_ns == 8 * 5 * MS
    assert first.algbw == pytest.approx((1 << 20) / 0.005)


def test_flushes_show_fill_and_operations():
    (row,) = diagnosed(zero_rank(0), zero_rank(1)).flushes
    assert (row.flushes, row.flushes_per_step) == (8, 1.0)
    assert row.fill == pytest.approx(262144 / 500_000_000)
    assert (row.wire_ops, row.wire_calls) == (["all_reduce"], 8)
    assert (row.duration_ns, row.exposed_ns) == (5 * MS, 5 * MS)


def test_a_verdict_of_the_run_is_said_to_be_of_its_time():
    told = Note("Rank 1 never entered it.", hang_ranks=(1,))
    (note,) = diagnosed(zero_rank(notes=[told])).quality.notes
    assert note == "While the run was stuck, dsprof said: Rank 1 never entered it."


def test_the_longest_fetches_come_first():
    each = ((1, 1, "backward"), (2, 5, "forward"))
    fetches = [fetch(n, 4 * n, ms, step=4, phase=phase) for n, ms, phase in each]
    assert [row.phase for row in diagnosed(zero_rank(fetches=fetches)).fetches] == [
        "forward",
        "backward",
    ]


def test_fetches_and_memory_have_their_rows():
    memory = [MemorySample("step", n, step=n, rss_bytes=n, device=None) for n in range(3)]
    diagnosis = diagnosed(
        zero_rank(fetches=[fetch(1, 0, 3, step=4, phase="forward")], memory=memory)
    )
    assert diagnosis.fetches[0].wait_ns == 3 * MS
    (rank,) = diagnosis.memory
    assert (rank.steps, rank.rss_bytes, rank.allocated_bytes) == ([0, 1, 2], [0, 1, 2], [])


def test_annotations_are_sums_and_their_waits_unknown_on_a_device():
    spans = [span("data", at, at + 10, is_annotation=True) for at in (0, 20)]
    spans.append(span("eval", 40, 70, is_annotation=True))
    trace = rank_trace(steps=[step(0, 0, 100)], spans=spans, comm=[sync("all_reduce", 1, 5)])
    rows = diagnosed(trace, replace(trace, header=header(1, 2))).annotations
    assert [(row.name, row.calls, row.calls_per_step) for row in rows] == [
        ("eval", 2, 1.0),
        ("data", 4, 2.0),
    ]
    assert [row.duration_ns for row in rows] == [60 * MS, 40 * MS]
    assert [row.exposed_ns for row in rows] == [0, 10 * MS]
    on_device = replace(trace, header=header(device="cuda"))
    assert diagnosed(on_device).annotations[0].exposed_ns is None


def test_timelines_start_with_the_step():
    for timeline in diagnosed(zero_rank(0), zero_rank(1, step_ms=101)).timelines:
        assert min(bar.start_ns for bar in timeline.bars) >= 0
        assert max(bar.end_ns for bar in timeline.bars) <= timeline.duration_ns
        assert {bar.rank for bar in timeline.bars} == {0, 1}


def test_waits_are_a_matrix_with_holes():
    waits = diagnosed(zero_rank(0, steps=3), zero_rank(1, steps=2)).waits
    assert (waits.ranks, waits.steps) == ([0, 1], [0, 1, 2])
    assert waits.exposed_ns == [[5 * MS] * 3, [5 * MS, 5 * MS, -1]]


def test_waits_that_cannot_be_measured_are_no_row():
    waits = diagnosed(zero_rank(head=header(device="cuda"))).waits
    assert (waits.ranks, waits.steps, waits.exposed_ns) == ([], [], [])


def test_quality_adds_up_what_the_ranks_say():
    worn = Trailer(
        reason="exit", dropped=3, unmatched_waits=2, hooks_ns=6 * MS, failed_hooks={"zero": "broke"}
    )
    quality = diagnosed(
        zero_rank(
            0,
            3,
            trailer=worn,
            notes=[Note("a clock step"), Note("met"), Note("met", count=2000)],
            hooks=[HookStatus("zero", installed=True, why="broke")],  # as its trailer says, too
        ),
        zero_rank(
            1,
            3,
            trailer=None,
            hooks=[
                HookStatus("fsdp", "torch", why="broken"),
                HookStatus("ddp", "late", lost=["buckets"]),
            ],
        ),
    ).quality
    assert (quality.missing_ranks, quality.unclean_ranks) == ([2], [1])
    assert (quality.dropped_events, quality.unmatched_waits, quality.waits) == (3, 2, 12)
    assert quality.training_cost_share == pytest.approx(0.01)
    assert quality.notes == ["a clock step", "met (2,000 times on a rank)"]
    assert [(note.name, note.ranks) for note in quality.hooks] == [
        ("zero", [0]),
        ("fsdp", [1]),
        ("ddp", [1]),
    ]


def test_a_rank_beyond_the_stated_number_of_ranks_is_noted() -> None:
    """As where the logs of several jobs lie in one folder."""
    (note,) = diagnosed(foreign(zero_rank(0, 2)), foreign(zero_rank(5, 8))).quality.notes
    assert note.startswith("One file states 2 ranks, another one is of rank 5: ")
    assert diagnosed(foreign(zero_rank(0, 2)), foreign(zero_rank(1, 2))).quality.notes == []


def test_records_that_only_a_newer_dsprof_knows_are_noted() -> None:
    trace = replace(zero_rank(0), unknown_records=1200)
    trace.header.versions["dsprof"] = "9.1"
    (note,) = diagnosed(trace).quality.notes
    assert note == (
        "1,200 records of unknown kinds: read the trace with the dsprof that recorded it (9.1)"
    )


def test_thresholds_in_force_are_listed_and_used():
    rule = CommunicationBoundStep()
    given = replace(rule.thresholds, exposed_share=0.01)
    nccl = [zero_rank(rank, head=header(rank, backend="nccl")) for rank in (0, 1)]
    diagnosis = diagnosed(*nccl, **{rule.meta.id: given})
    listed = {t.name: t for t in diagnosis.thresholds if t.rule == rule.meta.id}
    assert (listed["exposed_share"].value, listed["exposed_share"].is_default) == (0.01, False)
    assert listed["severe_share"].is_default
    assert diagnosis.findings[0].rule == rule.meta.id
    assert diagnosis.findings[0].status is Status.FAIL


def test_a_diagnosis_survives_its_json():
    diagnosis = diagnosed(zero_rank(0), zero_rank(1, trailer=None))
    assert to_json(from_json(to_json(diagnosis), "here")) == to_json(diagnosis)


def test_configuration_is_shown_as_written_and_in_force():
    environment = diagnosed(rank_trace(engine=engine(3))).environment
    assert environment.written_config["zero_optimization"] == {"stage": 3}
    assert environment.effective_config["zero_optimization"]["overlap_comm"] is True


@dataclass(frozen=True)
class _Case:
    traces: tuple[RankTrace, ...]
    start: str


@pytest.mark.parametrize(
    "case",
    [
        _Case(
            (zero_rank(0), zero_rank(1)),
            "No problems found. Step 100 ms: 85 % compute, 5 % exposed communication.",
        ),
        _Case(
            (zero_rank(0, stage=3), zero_rank(1, stage=3)), "ZeRO-3 reduces gradients by all-reduce"
        ),
        _Case(
            (rank_trace(0), rank_trace(1)),
            "No optimizer step was recorded. If the loop has no torch optimizer, call",
        ),
        _Case(
            (foreign(rank_trace(0)), foreign(rank_trace(1))),
            "Nothing to judge. No step and no collective was recorded. Record the run with",
        ),
        _Case(
            (rank_trace(0),),
            "The traces of 1 of 2 ranks are missing: rank 1. No optimizer step was recorded.",
        ),
        _Case(
            (foreign(rank_trace(0, snapshot=laid_out(active_bytes=3 << 30))),),
            "Nothing to judge. 3.00 GiB of 8.00 GiB reserved device memory is in use.",
        ),
        _Case(
            (zero_rank(0, 1, head=header(0, 1, device="cuda")),),
            "No problems found. Step 100 ms: exposed communication unknown.",
        ),
    ],
)
def test_verdict_is_one_honest_sentence(case):
    sentence = diagnosed(*case.traces).verdict
    assert sentence.startswith(case.start)
    assert sentence.endswith(".")


def test_a_run_that_has_just_begun_lacks_no_step():
    traces = summary(rank_trace(0), rank_trace(1))
    going = traces.with_part(replace(traces[Run], is_running=True))
    assert verdict([], going, None).startswith("No optimizer step has ended yet. ")


def test_an_environment_without_a_run_lacks_no_step():
    ends = {"trailer": Trailer(reason=OF_ENVIRONMENT), "environment": EnvSnapshot()}
    made = diagnosed(rank_trace(0, **ends), rank_trace(1, **ends))
    expected = "No problems found in the environment of 2 ranks, checked for gloo."
    assert made.verdict == made.headline.line == expected
    one = diagnosed(rank_trace(0, **ends))
    assert "step" not in one.verdict


def test_where_nothing_was_judged_no_problems_are_counted():
    made = diagnosed(foreign(rank_trace(0)), foreign(rank_trace(1)))
    assert "Problems" not in {tile.label for tile in made.tiles}


def test_the_verdict_on_files_without_steps_says_the_finding_and_how_many_follow():
    lines = logs.run(logs.out_of_memory(), logs.every("Using network IB", 2))
    made = diagnosed(*(foreign(trace) for trace in logs.read(lines)))
    failed = [finding for finding in made.findings if finding.status is Status.FAIL]
    assert made.verdict.startswith(failed[0].summary)
    assert "No optimizer step" not in made.verdict
    assert not made.quality.is_recorded
    more = verdict([failed[0], *failed, failed[0]], summary(foreign(rank_trace(0))), None)
    assert more == f"{failed[0].summary} {len(failed) + 1} more findings follow."
    two = verdict([failed[0], failed[0]], summary(foreign(rank_trace(0))), None)
    assert two == f"{failed[0].summary} One more finding follows."


def test_steps_say_what_their_figures_are_of():
    steps = diagnosed(*(captured(rank, window=range(4, 7), steps=10) for rank in (0, 1))).steps
    assert (steps.measured_steps, steps.warmup_steps) == (3, 2)
    assert steps.exposed_share == pytest.approx(0.05)
    assert steps.mean_total_ns == steps.median_total_ns == 100 * MS
    assert "over the 3 of 10 steps" in steps.method
    assert [row.step for row in steps.rows if row.is_measured] == [4, 5, 6]
    assert [row.is_counted for row in steps.rows] == [True] * 4 + [False] * 3 + [True] * 3


def test_counters_alone_are_used_and_said():
    diagnosis = diagnosed(*(captured(rank, window=range(0)) for rank in (0, 1)))
    assert "from counters" in diagnosis.steps.method
    assert diagnosis.steps.total.compute_ns is None
    assert diagnosis.steps.exposed_share == pytest.approx(0.2)
    assert diagnosis.quality.counted_only_steps == 6
    assert diagnosis.timelines == []
    assert Status.ERROR not in {finding.status for finding in diagnosis.findings}


def test_without_steps_there_is_no_mean():
    steps = diagnosed(rank_trace()).steps
    assert (steps.measured_steps, steps.mean_total_ns, steps.median_total_ns) == (0, None, None)


def test_a_flush_without_slots_has_none():
    assert diagnosed(zero_rank()).flushes[0].slot is None


def waiting(**fields):
    """Two ranks over gloo that wait for half of each step."""
    return [zero_rank(rank, comm_ms=50, **fields) for rank in (0, 1)]


def test_verdict_says_that_no_setting_explains_the_wait():
    assert diagnosed(*waiting()).verdict == (
        "No certain fix found. Step 100 ms: 40 % compute, 50 % exposed communication."
    )


def test_ranks_that_are_missing_are_a_limit_of_the_verdict_and_not_its_subject():
    verdict_of_one = diagnosed(foreign(zero_rank(0, 8))).verdict
    assert verdict_of_one.startswith("No problems found. Step 100 ms: ")
    assert verdict_of_one.endswith("the files of 7 of 8 ranks are missing.")


def test_a_run_is_not_called_healthy_without_the_rules_that_broke():
    broken = [
        Finding(rule=rule, title="Late", status=Status.ERROR, summary="KeyError: 1")
        for rule in ("late-rank", "slow-link")
    ]
    run = summary(*waiting())
    healthy = verdict([], run, None)
    assert "broke" not in healthy
    assert verdict(broken, run, None) == f"{healthy} Rules that broke: late-rank, slow-link."


def test_a_fault_of_low_severity_does_not_lead_where_the_step_waits():
    findings = [
        Finding(rule="told", title="Idle talk", status=Status.INFO, summary="a."),
        Finding(
            rule="communication-bound-step",
            title="The step waits for communication",
            status=Status.INFO,
            summary="Ranks wait.",
        ),
        Finding(rule="low", title="Odd", status=Status.FAIL, summary="b.", severity=Severity.LOW),
    ]
    run = summary(*waiting())
    lead = "Ranks wait. One more finding follows."
    assert verdict(findings, run, None) == lead
    grave = Finding(
        rule="high", title="Broken", status=Status.FAIL, summary="c.", severity=Severity.HIGH
    )
    assert verdict([grave, *findings], run, None) == "c. One more finding follows."
    saving = Finding(
        rule="low",
        title="Slow",
        status=Status.FAIL,
        summary="d.",
        severity=Severity.LOW,
        saving_ms_per_step=(3.0, 5.0),
    )
    assert verdict([*findings, saving], run, None) == "d. One more finding follows."


def test_a_step_that_is_mostly_outside_training_does_not_lead_with_its_shorter_waits():
    """It waits for 38 ms, and is outside its phases for 54 ms."""

    def rank(number: int) -> RankTrace:
        spans = [
            span(name, 100 * n + at, 100 * n + at + 4, n)
            for n in range(20)
            for at, name in ((0, "forward"), (30, "backward"))
        ]
        comm = [sync("all_reduce", 100 * n + 60, 38, seq=n, step=n) for n in range(20)]
        steps = [step(n, 100 * n, 100 * n + 100) for n in range(20)]
        return rank_trace(number, comm=comm, steps=steps, spans=spans)

    made = diagnosed(*map(rank, range(2)))
    assert made.headline.rule == made.findings[0].rule == "low-compute-share"
    assert any(
        one.rule == "communication-bound-step" and one.status is Status.INFO
        for one in made.findings
    )


def test_the_finding_of_the_headline_is_the_first(monkeypatch):
    odd = {"status": Status.FAIL, "summary": "b.", "severity": Severity.LOW}
    findings = [
        *(Finding(rule=rule, title="Odd", problem="Odd", **odd) for rule in ("low", "lower")),
        Finding(
            rule="communication-bound-step",
            title="The step waits",
            status=Status.INFO,
            summary="Ranks wait.",
            problem="The step waits",
        ),
    ]
    monkeypatch.setattr(build, "judge", lambda *_: findings)
    made = diagnosed(*waiting())
    assert made.headline.problem == "The step waits"
    assert [one.rule for one in made.findings] == ["communication-bound-step", "low", "lower"]


def test_without_phases_the_verdict_claims_no_computation():
    traces = [zero_rank(rank, spans=[]) for rank in (0, 1)]
    diagnosis = diagnosed(*traces)
    assert diagnosis.steps.total.compute_ns is None
    assert "forward" not in diagnosis.verdict
    assert "forward or backward is not marked" in diagnosis.steps.method


def test_a_wait_that_is_estimated_is_said_to_be():
    reduced = [
        issued("all_reduce", at, at + 60, wait=at + 30, waited=at + 60, is_estimated=True, step=n)
        for n, at in enumerate(range(0, 400, 100))
    ]
    steps = [step(n, 100 * n, 100 * n + 100) for n in range(4)]
    diagnosis = diagnosed(rank_trace(steps=steps, comm=reduced))
    assert diagnosis.steps.estimated_share == 1
    assert "100 % of it is an upper bound" in diagnosis.steps.method
