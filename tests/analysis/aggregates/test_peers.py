from __future__ import annotations

from dsprof.analysis.aggregates.peers import MOST_PEERS, Peers
from tests.factories.trace import MS, rank_trace, step, summary, sync

MIB = 1 << 20


def of_rank(rank, *comm):
    return rank_trace(rank, 4, steps=[step(0, 0, 100)], comm=comm)


def test_a_transfer_counts_once_and_the_receiver_waits():
    found = summary(
        of_rank(0, sync("send", 0, 1, step=0, peer=1), sync("isend", 2, 1, step=0, peer=1)),
        of_rank(1, sync("recv", 0, 5, step=0, peer=0), sync("irecv", 5, 5, step=0, peer=0)),
    )[Peers]
    assert {pair: held.nbytes for pair, held in found.once.items()} == {(0, 1): 2 * MIB}
    assert found.received[0, 1].exposed_ns == 10 * MS


def test_the_receiver_tells_what_a_missing_rank_sent():
    found = summary(of_rank(1, sync("recv", 0, 5, step=0, peer=3)))[Peers]
    assert {pair: held.nbytes for pair, held in found.once.items()} == {(3, 1): MIB}


def test_collectives_and_unknown_peers_are_no_pairs():
    found = summary(of_rank(0, sync("all_reduce", 0, 1, step=0), sync("recv", 2, 1, step=0)))[Peers]
    assert not found.once


def test_of_many_peers_the_largest_are_kept():
    comm = [sync("send", n, 1, step=0, peer=n, nbytes=n * MIB) for n in range(1, MOST_PEERS + 20)]
    found = summary(of_rank(0, *comm))[Peers]
    assert min(peer for _, peer in found.sent) == 20
