from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.misplaced_groups import MisplacedGroups
from tests.factories.nodes import MIB, of, on_nodes
from tests.factories.trace import rank_trace, said

RULE = MisplacedGroups()

IN_ORDER, IN_TURN = ["a", "a", "b", "b"], ["a", "b", "a", "b"]
APART = [of(1, (0, 2), "tensor"), of(2, (1, 3), "tensor")]
TOGETHER = [of(1, (0, 1), "tensor"), of(2, (2, 3), "tensor")]


def run(hosts, groups, took: float = 5):
    comm = [{"op": "all_reduce", "took": took, "group": one.id} for one in groups]
    return on_nodes(hosts, comm, groups)


def test_groups_that_are_apart_though_a_node_has_room_fail():
    finding = said(RULE, *run(IN_ORDER, APART))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert "2 groups of 2 for tensor parallel span 2 nodes, but fit into 1" in finding.summary
    assert "innermost dimension" in finding.action
    (table,) = finding.evidence
    assert table.rows == (("tensor parallel", 2, 2, 2, 1, MIB, pytest.approx(5.0)),)
    assert finding.evidence[0].rows == (("tensor parallel", 2, 2, 2, 1, 1 << 20, 5.0),)


def test_it_explains_waits_of_the_mean_rank_that_links_in_a_node_would_not_have():
    assert said(RULE, *run(IN_ORDER, APART)).explains_ms == pytest.approx(5 * 3 / 4)
    assert said(RULE, *run(IN_ORDER, APART[:1])).explains_ms == pytest.approx(5 / 2 * 3 / 4)


def test_ranks_dealt_in_turn_are_a_fault_of_the_launcher():
    finding = said(RULE, *run(IN_TURN, TOGETHER))
    assert "round-robin" in finding.cause
    assert "--map-by slot" in finding.action


def test_a_size_that_does_not_divide_a_node_is_said():
    groups = [of(n + 1, range(3 * n, 3 * n + 3), "tensor") for n in range(4)]
    finding = said(RULE, *run([host for host in "abc" for _ in range(4)], groups))
    assert "3 does not divide the 4 of a host" in finding.cause
    assert finding.action == "Choose a group size that divides the number of ranks of a host."


def test_one_group_is_one():
    finding = said(RULE, *run(IN_ORDER, APART[:1]))
    assert "1 group of 2 for tensor parallel spans 2 nodes, but fits into 1" in finding.summary
    hosts = ["a", "a", "a", "b", "c", "c"]
    finding = said(RULE, *run(hosts, [of(1, range(3), "tensor"), of(2, range(3, 6), "tensor")]))
    assert finding.action == "Give all hosts the same number of ranks."


@pytest.mark.parametrize(
    ("hosts", "groups"),
    [
        (IN_ORDER, TOGETHER),
        (IN_TURN, APART),
        (IN_ORDER, [of(1, range(4), "tensor")]),
        ([*IN_ORDER, "c", "c"], [of(1, range(4), "shard")]),
        (["a", "a", "a", "b", "c"], [of(1, range(5), "shard")]),
    ],
    ids=["inside", "inside in turn", "larger than a node", "two nodes", "unequal nodes"],
)
def test_groups_on_as_few_nodes_as_can_be_pass(hosts, groups):
    assert said(RULE, *run(hosts, groups)).status is Status.PASS


@pytest.mark.parametrize(
    ("hosts", "groups"),
    [
        (["a"] * 4, APART),
        (["a", "b", "c", "d"], APART),
        (IN_ORDER, [of(1, (0, 2), "data"), of(2, (0, 1), "pipeline")]),
    ],
    ids=["one host", "one rank a host", "roles that may cross"],
)
def test_it_does_not_apply(hosts, groups):
    assert said(RULE, *run(hosts, groups)).status is Status.NOT_APPLICABLE


def test_hosts_of_ranks_without_a_trace_are_not_known():
    assert said(RULE, *run(IN_ORDER, TOGETHER)[:3]).status is Status.UNKNOWN


def test_a_run_without_collectives_has_no_groups():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE
