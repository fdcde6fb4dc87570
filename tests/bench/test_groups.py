from __future__ import annotations

from dsprof.bench.groups import Plan, stages


def test_one_node_is_measured_as_the_world_and_as_a_pair():
    assert stages(["a"] * 4) == [
        [Plan("world", (0, 1, 2, 3), False)],
        [Plan("pair", (0, 1), False)],
    ]


def test_two_ranks_are_one_group():
    assert stages(["a", "a"]) == [[Plan("world", (0, 1), False)]]
    assert stages(["a", "b"]) == [[Plan("world", (0, 1), True)]]


def test_nodes_are_measured_at_the_same_time_and_pairs_after_them():
    assert stages(["a", "a", "a", "b", "b", "b"]) == [
        [Plan("world", (0, 1, 2, 3, 4, 5), True)],
        [Plan("node", (0, 1, 2), False), Plan("node", (3, 4, 5), False)],
        [Plan("pair", (0, 1), False)],
        [Plan("pair", (0, 3), True)],
    ]


def test_ranks_need_not_be_in_the_order_of_nodes():
    (_, nodes, across) = stages(["a", "b", "a", "b"])
    assert [plan.ranks for plan in nodes] == [(0, 2), (1, 3)]
    assert across == [Plan("pair", (0, 1), True)]


def test_a_node_of_one_rank_is_no_group():
    assert [plan.ranks for stage in stages(["a", "b", "c"]) for plan in stage] == [
        (0, 1, 2),
        (0, 1),
    ]
