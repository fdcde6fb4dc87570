"""What logs of NCCL say of ranks must be alike."""

from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.network_differs_across_ranks import NetworkDiffersAcrossRanks
from tests.factories import logs as make
from tests.rules.judged_logs import IB, one


@pytest.mark.parametrize(
    ("others", "odd", "name", "severity"),
    [
        ("Using network IB", "Using network Socket", "network differs", Severity.CRITICAL),
        ("NET/Plugin: No plugin found (libnccl-net.so)",
         "Plugin Path : /opt/libnccl-net.so", "network plugin differs", Severity.CRITICAL),
        (IB, "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
         "number of network devices differs", Severity.MEDIUM),
        ("NCCL version 2.21.5+cuda12.4", "NCCL version 2.27.3+cuda12.9",
         "NCCL version differs", Severity.CRITICAL),
        ("Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA",
         "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0", "GPUDirect RDMA", Severity.MEDIUM),
    ],
)  # fmt: skip
def test_what_must_be_alike(others, odd, name, severity):
    finding = one(
        NetworkDiffersAcrossRanks(), make.run(make.every(others, 3), make.said(odd, rank=3))
    )
    assert (finding.severity, finding.ranks) == (severity, (3,))
    assert name in finding.summary
    assert one(NetworkDiffersAcrossRanks(), make.run(make.every(others))).status is Status.PASS


def test_all_that_differs_is_listed_and_counted():
    direct = make.said("Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA", rank=0)
    staged = make.said("Channel 00/0 : 2[0] -> 0[0] [send] via NET/IB/0", rank=2)
    networks = [make.said(f"Using network {'IB' if n < 3 else 'Socket'}", n) for n in range(4)]
    finding = one(NetworkDiffersAcrossRanks(), make.run(networks, direct, staged))
    assert finding.summary == (
        "The network differs: IB on ranks 0-2; Socket on rank 3, and 1 more difference."
    )
    assert [row[:3] for row in finding.evidence[0].rows] == [
        ("network", "IB", "0-2"),
        ("network", "Socket", "3"),
        ("GPUDirect RDMA", "with GPUDirect RDMA", "0"),
        ("GPUDirect RDMA", "without", "2"),
    ]


def test_only_paths_over_the_network_tell_of_gpudirect():
    direct = make.every("Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA")
    inside = make.said("Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM", rank=3)
    assert one(NetworkDiffersAcrossRanks(), make.run(direct, inside)).status is Status.PASS


def test_one_rank_has_nothing_to_compare():
    assert one(NetworkDiffersAcrossRanks(), make.run(ranks=1)).status is Status.NOT_APPLICABLE


def test_an_interface_that_leads_to_no_other_host():
    lines = make.run(make.every("Bootstrap: Using lo:127.0.0.1<0>"))
    finding = one(NetworkDiffersAcrossRanks(), lines)
    assert "lo" in finding.summary
    assert "NCCL_SOCKET_IFNAME" in finding.action


def test_a_sentence_names_a_few_interfaces_of_many():
    lines = [make.said(f"Bootstrap: Using veth{n}a:10.0.0.1<0>", n) for n in range(4)]
    finding = one(NetworkDiffersAcrossRanks(), make.run(lines))
    assert "interface veth0a, veth1a, veth2a and 1 more, which they cannot reach" in finding.summary
