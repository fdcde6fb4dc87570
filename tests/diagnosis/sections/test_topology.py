from __future__ import annotations

import pytest

from dsprof.diagnosis.parts.topology import GroupLayout, Topology
from dsprof.diagnosis.sections.topology import MOST_RANKS, topology
from tests.factories.trace import MS, group, header, rank_trace, step, summary, sync

MIB = 1 << 20


def parallel(size: int, tensor: int, *, hosts: int = 1) -> Topology:
    """Tensor parallel groups of neighbours, data parallel ones across; all reduce in both."""
    return topology(summary(*(_rank(rank, size, tensor, hosts) for rank in range(size))))


def _rank(rank: int, size: int, tensor: int, hosts: int):
    mine = rank // tensor
    inner = list(range(mine * tensor, (mine + 1) * tensor))
    across = list(range(rank % tensor, size, tensor))
    groups = {
        1: group(size),
        2: group(id=2, key=f"t{mine}", label=f"group {mine}", ranks=inner, role="tensor"),
        3: group(id=3, key=f"d{rank % tensor}", label="dp", ranks=across, role="data"),
    }
    comm = [
        sync("all_reduce", 0, 2, step=0, group=2),
        sync("all_reduce", 5, 4, step=0, group=3, nbytes=3 * MIB),
    ]
    head = header(rank, size, host=f"node-{rank * hosts // size}")
    return rank_trace(rank, size, head=head, groups=groups, comm=comm, steps=[step(0, 0, 100)])


def test_groups_of_one_kind_are_a_row_and_ranks_have_their_numbers() -> None:
    found = parallel(8, 2, hosts=2)
    assert found.ranks == [*range(8)]
    assert found.hosts == ["node-0"] * 4 + ["node-1"] * 4
    rows = {one.name: one for one in found.layouts}
    assert list(rows) == ["world", "data parallel", "tensor parallel"]
    assert rows["tensor parallel"].group_of == [0, 0, 1, 1, 2, 2, 3, 3]
    assert rows["data parallel"].group_of == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [(one.groups, one.size, one.hosts) for one in rows.values()] == [
        (1, 8, 2), (2, 4, 2), (4, 2, 1),
    ]  # fmt: skip
    assert (rows["data parallel"].bytes_per_step, rows["data parallel"].exposed_ns) == (
        3 * MIB,
        4 * MS,
    )
    assert rows["world"].bytes_per_step == 0  # it exists, and was not used


def test_groups_of_one_name_that_share_ranks_are_rows_of_their_own() -> None:
    groups = {
        n: group(id=n, key=f"g{n}", label="custom", ranks=ranks)
        for n, ranks in ((1, [0, 1]), (2, [1, 2]))
    }
    found = topology(summary(rank_trace(1, 3, groups=groups)))
    assert [one.group_of for one in found.layouts] == [[0, 0, -1], [-1, 0, 0]]
    assert found.layouts[0].bytes_per_step is None  # no step was recorded
    assert found.layouts[0].hosts is None  # of ranks 0 and 2 there is no trace


def test_what_some_ranks_do_is_shared_by_all_of_their_group() -> None:
    groups = {1: group(2), 2: group(id=2, key="t", label="tp", ranks=[0])}
    comm = [sync("recv", 0, 8, step=0, peer=0)]
    steps = [step(0, 0, 100)]
    found = topology(
        summary(
            rank_trace(0, 2, head=header(0, host="a"), groups=groups, steps=steps),
            rank_trace(1, 2, head=header(1, host="b"), groups=groups, steps=steps, comm=comm),
        )
    )
    assert found.layouts[0].exposed_ns == 4 * MS


def test_one_group_on_one_host_needs_no_picture_and_many_ranks_are_cut() -> None:
    assert topology(summary(rank_trace(0, 4, groups={1: group(4)}))) == Topology()
    found = parallel(MOST_RANKS + 8, 8)
    assert len(found.ranks) == MOST_RANKS
    assert found.left_out_ranks == 8
    assert found.layouts[-1].groups == 9  # those that are not drawn count, too


def test_a_layout_without_each_rank_is_refused() -> None:
    layout = GroupLayout(
        name="dp", size=2, groups=1, hosts=1, group_of=[0], bytes_per_step=0, exposed_ns=0
    )
    with pytest.raises(ValueError, match="each rank"):
        Topology(ranks=[0, 1], hosts=["", ""], layouts=[layout])
