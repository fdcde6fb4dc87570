"""Transports by logs of NCCL: what is slower than the machine allows."""

from __future__ import annotations

import pytest

from dsprof.environment import EnvSnapshot
from dsprof.environment.machine import Adapter
from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.nccl_warning import NcclWarning
from dsprof.rules.communication.transport_fallback import TransportFallback
from tests.factories import logs as make
from tests.factories.trace import judged
from tests.rules.judged_logs import IB, SOCKET, findings, one


def test_sockets_fail_where_something_faster_is_seen():
    lines = make.run(
        make.every(IB, 2),
        make.every("Using network IB", 2),
        [make.said("NET/IB : No device found.", rank) for rank in (2, 3)],
        [make.said(SOCKET, rank) for rank in (2, 3)],
        [make.said("Using network Socket", rank) for rank in (2, 3)],
    )
    finding = one(TransportFallback(), lines)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.ranks == (2, 3)
    assert "mlx5_0:1/IB" in finding.summary
    assert finding.cause == "No InfiniBand device on ranks 2-3."


def test_sockets_are_said_as_they_are_where_nothing_faster_is_seen():
    lines = make.run(make.every(SOCKET), make.every("Using network Socket"))
    finding = one(TransportFallback(), lines)
    assert finding.status is Status.INFO
    assert "2 hosts by TCP sockets (eth0)" in finding.summary
    inside = [make.said("Using network Socket", rank, host="one") for rank in range(2)]
    inside += [make.ready(rank, 2, host="one") for rank in range(2)]
    assert one(TransportFallback(), inside).status is Status.PASS


def test_a_log_without_a_word_on_the_network_leaves_it_open():
    assert one(TransportFallback(), make.run()).status is Status.UNKNOWN


def test_the_libfabric_provider_for_tcp():
    lines = make.run(make.every("NET/OFI Selected Provider is tcp (found 1 nics)"))
    assert "provider tcp on ranks 0-3" in one(TransportFallback(), lines).summary
    lines = make.run(make.every("NET/OFI Selected Provider is efa (found 4 nics)"))
    assert one(TransportFallback(), lines).status is Status.PASS


LIBFABRIC = "libfabric:85:1747438790::core:core:fi_getinfo_():1392<warn> fi_getinfo: provider "


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (make.every("NET/OFI No eligible providers were found"), "No eligible providers"),
        (make.every("NET/OFI No usable provider", level="WARN"), "No usable provider"),
        (
            make.every("NET/OFI OFI fi_getinfo() call failed: No data available", level="WARN"),
            "fi_getinfo() call failed: No data available",
        ),
        (make.every("NET/OFI Failed to initialize rdma protocol", level="WARN"), "rdma protocol"),
        (make.every("NET/OFI Initializing plugin failed", level="WARN"), "plugin failed"),
        (
            make.every("NET/OFI aws-ofi-nccl initialization failed", level="WARN"),
            "initialization failed",
        ),
        ([f"[rank{n}]:{LIBFABRIC}efa output empty list" for n in range(4)], "efa"),
        ([f"[rank{n}]:{LIBFABRIC}cxi returned -61 (No data available)" for n in range(4)], "cxi"),
    ],
)
def test_a_libfabric_plugin_without_a_provider(lines, said):
    tcp = [make.every(SOCKET), make.every("Using network Socket")]
    finding = one(TransportFallback(), make.run(lines, *tcp))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.ranks == (0, 1, 2, 3)
    assert said in finding.summary
    assert "fi_info -p efa" in finding.action


@pytest.mark.parametrize(
    "lines",
    [
        make.every("NET/Plugin: Failed to find ncclCollNetPlugin_v6 symbol."),
        # Asked again with other hints, libfabric finds one.
        [f"[rank{n}]:{LIBFABRIC}efa output empty list" for n in range(4)]
        + make.every("NET/OFI Selected provider is efa, fabric is efa (found 4 nics)"),
        # MPI asks libfabric, too; NCCL has verbs.
        [f"[rank{n}]:{LIBFABRIC}efa output empty list" for n in range(4)]
        + make.every(IB)
        + make.every("Using network IB"),
        # Another provider than that of a network is no loss.
        [f"[rank{n}]:{LIBFABRIC}shm returned -61 (No data available)" for n in range(4)]
        + make.every("NET/OFI Selected Provider is efa"),
    ],
)
def test_harmless_lines_of_libfabric(lines):
    found = findings(TransportFallback(), make.run(lines)) + findings(
        NcclWarning(), make.run(lines)
    )
    assert not [finding for finding in found if finding.status is Status.FAIL]


def test_inside_a_host_no_provider_is_needed():
    lines = [make.said("NET/OFI No eligible providers were found", rank, "a") for rank in range(2)]
    lines += [make.ready(rank, 2, host="a") for rank in range(2)]
    assert one(TransportFallback(), lines).status is Status.PASS


def test_gpudirect_rdma_that_is_off_everywhere():
    state = "NET/IB : GPU Direct RDMA {} for HCA {} 'mlx5_{}'"
    off = make.every(state.format("Disabled", 0, 0))
    finding = one(TransportFallback(), make.run(make.every(IB), off))
    assert finding.title == "GPUDirect RDMA is off"
    on = make.every(state.format("Enabled", 1, 1))
    assert one(TransportFallback(), make.run(make.every(IB), off, on)).status is Status.PASS


def test_host_memory_between_linked_gpus():
    shm = make.said("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct")
    link = make.said("          + NVL[240.0] - GPU/4C000")
    finding = one(TransportFallback(), make.run(make.every(IB), shm, link))
    assert finding.ranks == (0,)
    assert "NVL 240.0 GB/s" in finding.summary
    assert one(TransportFallback(), make.run(make.every(IB), shm)).status is Status.PASS
    # Bridges link pairs: the ring goes from one pair to the next through memory.
    pair = make.said("Channel 00 : 1[1] -> 0[0] via P2P/CUMEM/read", rank=1)
    bridged = make.run(make.every(IB), shm, link, pair)
    assert one(TransportFallback(), bridged).status is Status.PASS
    far = make.said("Channel 00 : 3[1] -> 2[0] via P2P/CUMEM/read", rank=3)
    assert one(TransportFallback(), make.run(make.every(IB), shm, link, far)).ranks == (0,)


@pytest.mark.parametrize(
    ("adapter", "status"),
    [
        (Adapter("mlx5_0:1", "mlx5_core", "InfiniBand", "400 Gb/sec", "ACTIVE"), Status.FAIL),
        (Adapter("rdmap0:1", "efa", "", "", "ACTIVE"), Status.FAIL),
        (Adapter("mlx5_0:1", "mlx5_core", "InfiniBand", "10 Gb/sec", "DOWN"), Status.INFO),
        (Adapter("mlx5_0:1", "mlx5_core", "Ethernet", "100 Gb/sec", "ACTIVE"), Status.INFO),
    ],
)
def test_a_port_of_the_host_is_faster_if_it_is_up_and_no_ethernet(adapter, status):
    lines = make.run(make.every(SOCKET), make.every("Using network Socket"))
    traces = make.read(lines)
    for trace in traces:
        trace.environment = EnvSnapshot(machine={"kernel": "6.1"}, adapters=[adapter])
    (finding,) = judged(TransportFallback(), *traces)
    assert finding.status is status
