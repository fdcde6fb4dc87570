from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.configuration.conflicting_config_keys import ConflictingConfigKeys
from dsprof.rules.configuration.rejected_config import RejectedConfig
from dsprof.trace.schema import EngineConfig
from tests.factories.ds_config import ran, read, rows, with_status, zero
from tests.factories.trace import header, judged, rank_trace

RULE = ConflictingConfigKeys()
REJECTED = RejectedConfig()

SPLIT = {"overlap_comm": True, "use_multi_rank_bucket_allreduce": False}
APART = {"overlap_comm": True, "contiguous_gradients": False}
FAULTS = {
    "zero_optimization.overlap_comm": (zero(2, **APART), Severity.MEDIUM),
    "zero_optimization.offload_optimizer.device": (
        zero(2, overlap_comm=True, offload_optimizer={"device": "nvme"}),
        Severity.MEDIUM,
    ),
    "zero_optimization.reduce_scatter": (zero(3, reduce_scatter=False), Severity.MEDIUM),
    "wall_clock_breakdown": (
        {**zero(0), "wall_clock_breakdown": True},
        Severity.LOW,
    ),
    "flops_profiler.enabled": ({**zero(0), "flops_profiler": {"enabled": True}}, Severity.LOW),
}
SYNCHRONISED = [
    (zero(1, **SPLIT), "use_multi_rank_bucket_allreduce"),
    (zero(2, **SPLIT, offload_optimizer={"device": "cpu"}), "use_multi_rank_bucket_allreduce"),
    (zero(1, **APART), "contiguous_gradients"),
]
NOTES = [
    (
        "use_multi_rank_bucket_allreduce: has no effect while contiguous_gradients",
        zero(2, contiguous_gradients=False, use_multi_rank_bucket_allreduce=False),
    ),
    (
        "use_multi_rank_bucket_allreduce: has no effect while reduce_scatter",
        zero(1, reduce_scatter=False, use_multi_rank_bucket_allreduce=True),
    ),
    (
        "reduce_scatter: has no effect while contiguous_gradients",
        zero(1, contiguous_gradients=False, reduce_scatter=False),
    ),
    ("reduce_scatter: stages 1 and 2", zero(2, reduce_scatter=True, overlap_comm=True)),
    ("overlap_comm: without it", zero(2)),
    ("overlap_comm: without it", zero(2, overlap_comm="auto")),  # dropped, as nobody fills it in
]


@pytest.mark.parametrize(("key", "case"), FAULTS.items())
def test_settings_at_odds_fail(key, case):
    written, severity = case
    (finding,) = read(RULE, written)
    assert (finding.status, finding.severity) == (Status.FAIL, severity)
    assert finding.title == RULE.meta.failing_title
    assert next(iter(rows([finding]))) == key


@pytest.mark.parametrize(("start", "written"), NOTES)
def test_what_is_so_by_design_is_information(start, written):
    notes = with_status(read(RULE, written), Status.INFO)
    assert any(note.summary.startswith(f"zero_optimization.{start}") for note in notes)
    assert {note.title for note in notes} == {"What a setting of DeepSpeed does"}


@pytest.mark.parametrize(("release", "fails"), [("0.19.2", True), ("0.19.3", False)])
def test_muon_needs_whole_gradients_up_to_a_release(release, fails):
    written = zero(2, overlap_comm=True) | {"optimizer": {"type": "Muon"}}
    faults = with_status(read(RULE, written, release), Status.FAIL)
    assert [fault.severity for fault in faults] == [Severity.HIGH] * fails


@pytest.mark.parametrize(
    ("release", "severities"),
    [
        ("0.14.2", [Severity.HIGH]),
        ("0.14.3", []),
        ("0.17.1", []),
        ("0.17.2", [Severity.HIGH]),
        ("0.17.5", [Severity.MEDIUM]),
        ("0.18.4", [Severity.MEDIUM]),
        ("0.18.5", []),
        ("0.19.0", []),
        ("", []),  # not known: the newest is asked
    ],
)
def test_overlap_comm_was_at_fault_in_some_releases(release, severities):
    faults = with_status(read(RULE, zero(2, overlap_comm=True), release), Status.FAIL)
    assert [fault.severity for fault in faults] == severities


@pytest.mark.parametrize(
    ("stage", "release", "notes"),
    [(2, "0.17.1", 1), (2, "0.17.5", 0), (2, "0.18.9", 1), (2, "0.19.0", 0), (1, "0.18.9", 0)],
)
def test_memory_that_large_gradients_may_lose_is_worth_knowing(stage, release, notes):
    told = with_status(read(RULE, zero(stage, overlap_comm=True), release), Status.INFO)
    assert len([note for note in told if "7965" in note.summary]) == notes


@pytest.mark.parametrize(("stage", "is_advised"), [(1, False), (2, True)])
def test_no_overlap_is_advised_that_deepspeed_would_refuse(stage, is_advised):
    written = {**zero(stage), "managed_gradient_accumulation": False}
    says = [finding.summary for finding in read(RULE, written)]
    assert any("overlap_comm: without it" in one for one in says) is is_advised
    overlapping = {**zero(stage, overlap_comm=True), "managed_gradient_accumulation": False}
    assert (read(REJECTED, overlapping)[0].status is Status.FAIL) is not is_advised


@pytest.mark.parametrize("keys", [{}, APART, {"overlap_comm": False}])
def test_such_a_release_is_no_fault_where_nothing_overlaps(keys):
    faults = with_status(read(RULE, zero(2, **keys), "0.18.4"), Status.FAIL)
    assert not [fault for fault in faults if "7804" in fault.summary]


@pytest.mark.parametrize(
    ("stage", "keys", "is_told"),
    [(2, {}, True), (2, APART, True), (1, {}, False), (3, {"overlap_comm": False}, False)],
)
def test_what_would_overlap_needs_another_release_first(stage, keys, is_told):
    told = [one.action for one in read(RULE, zero(stage, **keys), "0.18.9")]
    assert any("0.19.0 or later first" in action for action in told) is is_told


def test_a_cpu_has_no_streams_to_mix_up():
    written = zero(2, overlap_comm=True)
    (finding,) = ran(RULE, written, "0.17.3", device="cpu", effective=written)
    assert finding.status is Status.PASS


@pytest.mark.parametrize(("size", "notes"), [(2, 1), (1, 0), (0, 0), ("auto", 0), ("2", 0)])
def test_tensor_parallel_ranks_need_the_same_data(size, notes):
    written = {**zero(1, overlap_comm=True), "tensor_parallel": {"autotp_size": size}}
    found = with_status(read(RULE, written), Status.INFO)
    assert len(found) == notes
    assert all("Data inconsistency" in note.summary for note in found)


@pytest.mark.parametrize(("stage", "experts", "notes"), [(3, 2, 1), (3, 0, 0), (2, 2, 0)])
def test_experts_that_zero3_gathers_apart_are_worth_knowing(stage, experts, notes):
    written = zero(stage, overlap_comm=True)
    found = with_status(ran(RULE, written, effective=written, experts_apart=experts), Status.INFO)
    assert len(found) == notes
    assert all("leaf_module" in note.action for note in found)


def test_a_pipeline_section_is_told_before_the_engine_is_known():
    written = {**zero(1, overlap_comm=True), "pipeline": {"stages": 2}}
    (note,) = with_status(read(RULE, written), Status.INFO)
    assert "PipelineModule" in note.summary
    (kind,) = with_status(ran(RULE, written, effective=written, kind="PipelineEngine"), Status.INFO)
    assert "switches it off" in kind.summary


def test_without_reduce_scatter_no_bucket_synchronises():
    notes = read(RULE, zero(2, **SPLIT, reduce_scatter=False))
    assert {note.status for note in notes} == {Status.INFO}


@pytest.mark.parametrize(("device", "status"), [("cpu", Status.PASS), ("cuda:1", Status.FAIL)])
@pytest.mark.parametrize("written", [{**zero(0), "wall_clock_breakdown": True}, zero(2, **APART)])
def test_waiting_costs_where_there_is_a_device_to_wait_for(written, device, status):
    effective = {"zero_optimization": written["zero_optimization"]}
    (finding,) = ran(RULE, written, device=device, effective=effective)
    assert finding.status is status


@pytest.mark.parametrize(("written", "key"), SYNCHRONISED)
def test_a_patch_mends_what_synchronises(written, key):
    (finding,) = read(RULE, written)
    assert finding.severity is Severity.MEDIUM
    assert finding.config_patch == {"zero_optimization": {key: True}}
    written["zero_optimization"] |= finding.config_patch["zero_optimization"]
    assert read(RULE, written)[0].status is Status.PASS


@pytest.mark.parametrize(
    "written",
    [
        zero(3, **APART),  # stage 3 reduces in another way
        zero(0, overlap_comm=True),
        zero(2, overlap_comm=True, reduce_scatter=False),
        zero(2, **APART, offload_optimizer={"device": "cpu"}),  # forces contiguous gradients
        zero(3, overlap_comm=True, offload_optimizer={"device": "nvme"}),
        zero("auto", wall_clock_breakdown=True),
        {**zero(3), "wall_clock_breakdown": "auto"},
    ],
)
def test_what_goes_together_passes(written):
    assert read(RULE, written)[0].status is Status.PASS


def test_what_is_in_force_counts():
    effective = {"zero_optimization": {"stage": 2, "overlap_comm": True}}
    (finding,) = ran(RULE, zero(2, overlap_comm="auto"), effective=effective)
    assert finding.status is Status.PASS


def test_a_pipeline_engine_does_not_overlap():
    effective = {"zero_optimization": {"stage": 1, "overlap_comm": True}}
    written = zero(1, overlap_comm=True)
    (finding,) = ran(RULE, written, effective=effective, kind="PipelineEngine")
    assert (finding.status, "pipeline" in finding.summary) == (Status.INFO, True)


def test_each_engine_is_judged_and_equal_ones_once():
    written = [zero(3), zero(2, **APART), zero(2, **APART)]
    engines = {n: EngineConfig(n, one) for n, one in enumerate(written, 1)}
    trace = rank_trace(engines=engines, head=header(device="cuda:0"))
    (finding,) = with_status(judged(RULE, trace), Status.FAIL)
    assert finding.summary.startswith("Engine 2: zero_optimization.overlap_comm")


def test_what_a_run_shows_by_its_traffic_is_told_before_it_alone():
    written = zero(2, reduce_scatter=True)
    about = "zero_optimization.reduce_scatter"
    before, run = read(RULE, written), ran(RULE, written, effective=written)
    assert [one for one in before if one.summary.startswith(about)]
    assert not [one for one in run if one.summary.startswith(about)]


@pytest.mark.parametrize(
    "needing",
    [
        {"optimizer": {"type": "Muon"}},
        {"prescale_gradients": True},
        {"gradient_predivide_factor": 2.0},
    ],
)
def test_reduce_scatter_is_off_at_stage_3_where_something_needs_it_off(needing):
    findings = read(RULE, zero(3, overlap_comm=True, reduce_scatter=False) | needing)
    assert "reduce_scatter" not in " ".join(finding.summary for finding in findings)
    assert not with_status(findings, Status.FAIL)


def test_of_a_run_at_stage_3_another_rule_says_what_was_sent():
    written = zero(3, overlap_comm=True, reduce_scatter=False)
    assert ran(RULE, written, effective=written)[0].status is Status.PASS


@pytest.mark.parametrize("part", ["offload_optimizer", "offload_param"])
def test_pageable_memory_is_worth_a_remark_where_something_is_offloaded(part):
    def keys(**settings):
        written = zero(3, overlap_comm=True, **{part: settings})
        return list(rows(with_status(read(RULE, written), Status.INFO)))

    key = f"zero_optimization.{part}.pin_memory"
    assert key in keys(device="cpu", pin_memory=False)
    assert key not in keys(device="cpu", pin_memory=True)
    assert key not in keys(device="none", pin_memory=False)
    assert key not in keys(device="cpu")
