from __future__ import annotations

import pytest
from msgspec import structs

from dsprof.findings.finding import Finding, Status
from dsprof.rules.communication.inter_node_gathers import InterNodeGathers
from dsprof.trace.device_counters import DEVICE_TOTAL, PEAK_RESERVED
from dsprof.trace.rank_trace import RankTrace
from tests.factories.memory import GIB, MIB, on_device
from tests.factories.nodes import of, on_nodes
from tests.factories.trace import assert_reached_at, engine, said

RULE = InterNodeGathers()

HOSTS = ["a", "a", "b", "b"]
WORLD, INSIDE = of(1, range(4)), [of(2, (0, 1), "hpz"), of(3, (2, 3), "hpz")]


def gather(phase: str, group: int = 1, took: float = 10):
    return {"op": "all_gather", "phase": phase, "group": group, "took": took, "fetch": 7}


def run(*comm, hosts=HOSTS, groups=(WORLD, *INSIDE), **zero) -> list[RankTrace]:
    config = engine(3, **zero)
    return on_nodes(hosts, comm, groups, engine=config)


def judge(*comm, **fields) -> Finding:
    return said(RULE, *run(*comm, **fields))


def test_parameters_that_cross_nodes_again_fail_where_they_hold_the_step():
    finding = judge(gather("forward"), gather("backward"))
    assert finding.status is Status.FAIL
    assert "All-gathers send 1.00 MiB per step and rank across nodes" in finding.summary
    assert "all-gathers across nodes send 2.00 MiB" in finding.summary
    assert finding.config_patch == {"zero_optimization": {"zero_hpz_partition_size": 2}}
    assert finding.saving_bytes_per_step == MIB
    assert finding.saving_ms_per_step is None
    assert finding.confidence == "low"  # whether memory has room is not known
    assert finding.evidence[0].rows == tuple(
        ("", 4, phase, 1.0, MIB, 10.0) for phase in ("forward", "backward")
    )


def test_a_group_without_a_role_has_its_label():
    groups = (structs.replace(WORLD, label="sharded"), *INSIDE)
    finding = judge(gather("forward"), gather("backward"), groups=groups)
    assert {row[0] for row in finding.evidence[0].rows} == {"sharded"}


def test_its_threshold_is_reached_at_its_value():
    assert_reached_at(RULE, *run(gather("forward"), gather("backward")), held_share=0.1)


def test_they_are_worth_knowing_where_they_are_hidden():
    finding = judge(gather("forward"), gather("backward", took=1))
    assert finding.status is Status.INFO


@pytest.mark.parametrize(("reserved", "fits"), [(10, True), (72, False)])
def test_the_copy_must_fit_into_the_devices(reserved, fits):
    traces = run(gather("forward"), gather("backward"))
    for trace in traces:
        trace.engines[1].parameters = 2 * 10**9  # copies of 1.86 GiB
        counters = {DEVICE_TOTAL: 80 * GIB, PEAK_RESERVED: reserved * GIB}
        trace.memory = on_device(counters).memory
    finding = said(RULE, *traces)
    assert (finding.config_patch is not None) is fits
    assert "takes 1.86 GiB on each rank" in finding.action


def test_a_setting_that_is_there_is_not_advised_again():
    finding = judge(gather("forward"), gather("backward"), zero_hpz_partition_size=4)
    assert finding.config_patch is None
    assert finding.cause.startswith("zero_hpz_partition_size is 4")


def test_nodes_of_different_size_have_no_such_setting():
    finding = judge(gather("backward"), hosts=["a", "a", "a", "b"])
    assert finding.config_patch is None
    assert "same number of ranks" in finding.action


@pytest.mark.parametrize("zero", [{}, {"zero_hpz_partition_size": 2}])
def test_ranks_that_are_dealt_out_in_turn_are_placed_first(zero):
    finding = judge(gather("forward"), gather("backward"), hosts=["a", "b", "a", "b"], **zero)
    assert finding.config_patch is None
    assert finding.action.startswith("Let the launcher fill a host before the next")


def test_hpz_is_for_a_model_that_all_ranks_share():
    among = [of(1, (0, 1, 2, 3)), of(2, (0, 1, 2))]
    assert judge(gather("backward", 1), groups=among).status is Status.FAIL
    assert judge(gather("backward", 2), groups=among).status is Status.PASS


def test_autoep_refuses_hpz():
    traces = run(gather("backward"))
    for trace in traces:
        trace.engines[1].written["expert_parallel"] = {"enabled": True}
    assert said(RULE, *traces).status is Status.PASS


@pytest.mark.parametrize(
    "comm",
    [[gather("forward")], [gather("forward"), gather("backward", 2), gather("backward", 3)]],
    ids=["kept until backward", "hpZ"],
)
def test_what_stays_inside_passes(comm):
    assert judge(*comm).status is Status.PASS


@pytest.mark.parametrize(
    ("groups", "action"),
    [
        ((WORLD,), "hybrid sharding"),
        ((WORLD, of(2, (0, 2), "replicate")), "innermost dimension"),
    ],
)
def test_fsdp_could_shard_inside_nodes(groups, action):
    finding = said(RULE, *on_nodes(HOSTS, [gather("forward")], groups))
    assert finding.status is Status.FAIL
    assert action in finding.action


@pytest.mark.parametrize(
    "fields",
    [
        {"hosts": ["a"] * 4},
        {"hosts": list("abcd")},
    ],
)
def test_it_does_not_apply_or_passes_where_nothing_could_stay(fields):
    status = judge(gather("backward"), **fields).status
    assert status in (Status.NOT_APPLICABLE, Status.PASS)


def test_without_gathers_it_does_not_apply():
    plain = {"op": "all_reduce", "took": 1, "group": 1, "phase": "backward"}
    assert judge(plain).status is Status.NOT_APPLICABLE


def test_traces_of_one_host_of_several_cannot_tell():
    assert said(RULE, *run(gather("backward"))[:2]).status is Status.UNKNOWN
