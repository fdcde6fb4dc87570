from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.memory.host_memory_pressure import HostMemoryPressure
from tests.factories.memory import GIB, on_host
from tests.factories.trace import assert_reached_at, engine, header, judged, rank_trace, said

RULE = HostMemoryPressure()


def host(left: float = 100, shm: float = 100, rank: int = 0, name: str = "node-a", **fields):
    seen = {"host_total_bytes": 200 * GIB, "shm_total_bytes": 100 * GIB, "rss_bytes": 90 * GIB}
    now = {"host_available_bytes": int(left * GIB), "shm_free_bytes": int(shm * GIB)}
    early = {"host_available_bytes": 150 * GIB, "shm_free_bytes": 100 * GIB}
    head = header(rank, host=name)
    return on_host(seen | early, seen | now, seen | early, rank=rank, head=head, **fields)


def test_a_host_with_nothing_left_fails_at_its_worst_moment():
    finding = said(RULE, host(), host(left=2, rank=1, name="node-b"))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.ranks == (1,)
    assert "node-b had 2.00 GiB of 200 GiB free" in finding.summary
    assert finding.evidence[0].rows == (("node-b", 1, 200 << 30, 2 << 30, 90 << 30),)


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, host(), host(left=2, rank=1, name="node-b"), available_share=0.01)


@pytest.mark.parametrize(
    ("held_gib", "status"), [(20, Status.PASS), (150, Status.FAIL), (0, Status.FAIL)]
)
def test_little_of_a_large_host_is_much_for_small_ranks(held_gib, status):
    """Unknown sizes of ranks, 0 here, are not small."""
    seen = {"host_total_bytes": 2048 * GIB, "host_available_bytes": 100 * GIB}
    shared = {"shm_total_bytes": 1024 * GIB, "shm_free_bytes": 40 * GIB}
    trace = on_host({**seen, **shared, "rss_bytes": held_gib * GIB})
    assert said(RULE, trace).status is status
    of_both = judged(RULE, trace, enough_bytes=101 * GIB)
    assert [one.status for one in of_both] == [Status.FAIL] * 2


def test_ranks_of_a_host_are_added_up_and_offloading_is_named():
    config = engine(3, offload_optimizer={"device": "cpu"})
    finding = said(RULE, host(left=2, engine=config), host(left=3, rank=1))
    assert " had 2.00 GiB of" in finding.summary
    assert "its 2 ranks held up to 180 GiB." in finding.summary
    assert finding.cause == "Offloading keeps state in host memory: offload_optimizer."


@pytest.mark.parametrize(
    ("stage", "device", "said_of_it"),
    [(3, "cpu", "or to NVMe"), (2, "cpu", "less; spread"), (1, "nvme", "less; spread")],
)
def test_stage_3_alone_offloads_to_nvme(stage, device, said_of_it):
    config = engine(stage, offload_optimizer={"device": device})
    finding = said(RULE, host(left=2, engine=config))
    assert finding.cause == "Offloading keeps state in host memory: offload_optimizer."
    assert said_of_it in finding.action


def test_a_full_shm_is_a_finding_of_its_own():
    finding = said(RULE, host(shm=1))
    assert finding.title == "/dev/shm is almost full"
    assert len(judged(RULE, host(left=1, shm=1))) == 2


def test_the_threshold_of_shm_is_reached_at_its_value():
    assert_reached_at(RULE, host(shm=1), shm_free_share=0.01)


def test_room_passes():
    assert said(RULE, host()).status is Status.PASS


def test_without_samples_it_cannot_tell():
    assert said(RULE, rank_trace()).status is Status.UNKNOWN
    assert said(RULE, on_host({"host_total_bytes": 0})).status is Status.UNKNOWN


def test_of_many_hosts_some_are_listed():
    many = (host(left=2, rank=rank, name=f"node-{rank}") for rank in range(33))
    assert len(said(RULE, *many).evidence[0].rows) == 32
