from __future__ import annotations

import pytest

from dsprof.diagnosis.parts.topology import PeerTraffic
from dsprof.diagnosis.sections.peers import MOST, peer_traffic
from tests.factories.trace import MS, header, rank_trace, step, summary, sync

MIB = 1 << 20


def ring(size: int, *, hosts: int = 1, steps: int = 2) -> PeerTraffic:
    """Each rank sends as many MiB to the next as its number, 1 at least."""
    return peer_traffic(summary(*(_rank(rank, size, hosts, steps) for rank in range(size))))


def _rank(rank: int, size: int, hosts: int, steps: int):
    comm = [
        one
        for number in range(steps)
        for one in (
            sync("send", 100 * number, 1, step=number, peer=(rank + 1) % size, nbytes=_sent(rank)),
            sync(
                "recv",
                100 * number + 1,
                2,
                step=number,
                peer=(rank - 1) % size,
                nbytes=_sent((rank - 1) % size),
            ),
        )
    ]
    head = header(rank, size, host=f"node-{rank * hosts // size}")
    made = [step(number, 100 * number, 100 * number + 100) for number in range(steps)]
    return rank_trace(rank, size, head=head, steps=made, comm=comm)


def _sent(rank: int) -> int:
    return max(rank, 1) * MIB


def test_cells_are_what_a_step_sends_and_what_its_receiver_waits() -> None:
    found = ring(3)
    assert found.names == ["rank 0", "rank 1", "rank 2"]
    assert found.bytes == [[0, MIB, 0], [0, 0, MIB], [2 * MIB, 0, 0]]
    assert found.calls[2] == [1, 0, 0]
    assert found.waited_ns[2] == [2 * MS, 0, 0]


def test_many_ranks_are_shown_by_host_or_else_the_busiest_with_the_rest_summed() -> None:
    by_host = ring(MOST + 4, hosts=2, steps=1)
    assert by_host.names == ["node-0", "node-1"]
    half = (MOST + 4) // 2
    assert by_host.bytes[0][1] == (half - 1) * MIB
    busiest = ring(MOST + 4, steps=1)
    assert busiest.names == [*(f"rank {n}" for n in (0, *range(5, MOST + 4))), "others"]
    assert sum(map(sum, busiest.bytes)) == sum(map(_sent, range(MOST + 4)))


def test_ranks_whose_host_is_unknown_are_not_shown_by_host() -> None:
    size = MOST + 4
    found = peer_traffic(summary(*(_rank(rank, size, 2, 1) for rank in range(1, size))))
    assert found.names[-1] == "others"


def test_what_was_not_recorded_is_not_zero() -> None:
    unsized = rank_trace(
        0,
        2,
        steps=[step(0, 0, 100)],
        comm=[sync("send", 0, 1, step=0, peer=1, tensors=0, nbytes=0)],
    )
    found = peer_traffic(summary(unsized))
    assert found.bytes[0][1] is None
    assert found.waited_ns[0][1] is None  # the receiver's trace is missing


def test_without_transfers_there_is_nothing() -> None:
    assert peer_traffic(summary(rank_trace())) == PeerTraffic()


def test_a_matrix_with_a_missing_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="one cell for each pair"):
        PeerTraffic(names=["rank 0"], bytes=[[1]], calls=[], waited_ns=[[1]])
