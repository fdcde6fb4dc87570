from __future__ import annotations

from dataclasses import replace

import pytest

from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.alignment.clocks import align, clock_samples
from dsprof.analysis.summarise import summarise_traces
from dsprof.environment import EnvSnapshot
from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.low_bus_bandwidth import LowBusBandwidth
from dsprof.rules.runner import judge
from tests.factories import machines
from tests.factories.baseline import baseline, cost
from tests.factories.trace import (
    MS,
    device_step,
    enqueued,
    header,
    rank_trace,
    said,
    stall,
    step,
    sync,
    zero_rank,
)

RULE = LowBusBandwidth()

MB = 1_000_000
ACROSS = baseline(cost(crosses_nodes=True))


def ranks(took_ms=10.0, late_ms=0.0, nbytes=4 * MB, steps=12, hosts=2):
    """Two ranks over gloo; rank 1 comes `late_ms` later to the reduction of each step."""
    for rank in (0, 1):
        comm = [
            sync(
                "all_reduce",
                100 * k + late_ms * rank,
                took_ms + late_ms * (1 - rank),
                seq=k + 1,
                step=k,
                nbytes=nbytes,
            )
            for k in range(steps)
        ]
        taken = [step(k, 100 * k, 100 * k + 100) for k in range(steps)]
        host = f"node-{rank % hosts}"
        yield rank_trace(rank, comm=comm, steps=taken, head=header(rank, host=host, boot_id=host))


def against(made, *traces, **thresholds):
    """What the rule says where a baseline was given: 100 us and 1 ns a byte in the factory's."""
    traces = [*traces]
    alignment = align(map(clock_samples, traces))
    run = summarise_traces(traces, alignment).with_part(BaselineCosts(made))
    given = replace(RULE.thresholds, **thresholds)
    (finding,) = judge(run, [RULE], {RULE.meta.id: given})
    return finding


def devices(took_ms, nbytes=1 << 30, machine=None):
    """Eight H100s that reduce 1 GiB in `took_ms` ms of the device's clock, step by step."""
    environment = EnvSnapshot(**(machine or machines.h100_infiniband()))
    for rank in range(8):
        comm = [
            enqueued("all_reduce", 100 * k + 1, seq=k + 1, step=k, nbytes=nbytes) for k in range(12)
        ]
        at = {one.args.id: 100 * k + 5 for k, one in enumerate(comm)}
        yield rank_trace(
            rank,
            8,
            comm=comm,
            head=header(rank, 8, backend="nccl", device="cuda"),
            environment=environment,
            steps=[step(k, 100 * k, 100 * k + 100) for k in range(12)],
            device_steps=[device_step(k, 100 * k, 100 * k + 100) for k in range(12)],
            stalls=[stall(x, "collective", at[x.args.id], at[x.args.id] + took_ms) for x in comm],
        )


def test_transfers_slower_than_the_baseline_fail():
    finding = against(ACROSS, *ranks(took_ms=20))
    assert finding.status is Status.FAIL
    assert finding.severity is Severity.MEDIUM
    assert "all_reduce of 3.81 MiB in world (across 2 hosts) moves 200 MB/s" in finding.summary
    assert "reach 200 MB/s, 20 % of the 976 MB/s of the baseline" in finding.summary
    (row,) = finding.evidence[0].rows
    assert row[0] == "all_reduce"
    assert row[5] == 10  # of twelve steps two are warm-up
    assert finding.saving_ms_per_step is None


def test_on_cpus_of_one_host_no_link_is_to_blame():
    finding = against(baseline(), *ranks(took_ms=20, hosts=1))
    assert finding.status is Status.INFO
    assert "in world (within a host) moves 200 MB/s" in finding.summary
    assert finding.title.startswith("Collectives are slower than when")
    assert finding.severity is Severity.NONE


def test_transfers_at_the_speed_of_the_baseline_pass():
    finding = against(ACROSS, *ranks(took_ms=4.1))
    assert finding.status is Status.PASS
    assert "reach 100 %" in finding.summary


def test_other_programs_that_slow_most_calls_are_no_slow_link():
    def noisy(rank):
        comm = [
            sync("all_reduce", 100 * k, 4 if k % 3 == 0 else 40, seq=k + 1, step=k, nbytes=4 * MB)
            for k in range(12)
        ]
        taken = [step(k, 100 * k, 100 * k + 100) for k in range(12)]
        return rank_trace(rank, comm=comm, steps=taken)

    finding = against(baseline(), noisy(0), noisy(1))
    assert finding.status is Status.PASS
    assert finding.evidence[0].rows[0][6] == 40 * MS


def test_waiting_for_a_late_rank_is_not_held_against_the_links():
    assert against(ACROSS, *ranks(took_ms=4.1, late_ms=50)).status is Status.PASS


def test_small_and_rare_transfers_are_not_judged():
    assert against(ACROSS, *ranks(20, nbytes=100_000)).status is Status.NOT_APPLICABLE
    assert against(ACROSS, *ranks(20, steps=6)).status is Status.NOT_APPLICABLE
    assert against(ACROSS, *ranks(20, steps=6), calls=4).status is Status.FAIL


def test_a_baseline_without_such_a_group_does_not_tell():
    assert against(baseline(), *ranks(took_ms=20)).status is Status.UNKNOWN
    assert against(ACROSS, *ranks(took_ms=20, hosts=1)).status is Status.UNKNOWN


def test_without_a_model_of_the_links_it_could_not_tell():
    finding = said(RULE, *ranks(took_ms=20, hosts=1))
    assert finding.status is Status.UNKNOWN
    assert "dsprof bench" in finding.summary


@pytest.mark.parametrize(("took_ms", "status"), [(6, Status.PASS), (30, Status.FAIL)])
def test_links_of_known_accelerators_are_judged(took_ms, status):
    # 1 GiB on eight ranks at 361 GB/s takes 5.4 ms.
    assert said(RULE, *devices(took_ms)).status is status


def test_a_tenth_of_a_link_is_grave_and_the_model_named():
    finding = said(RULE, *devices(80))
    assert finding.severity is Severity.HIGH
    assert "that others reach at this size over NVLink 4" in finding.summary
    assert finding.confidence == "low"


def test_below_64_mib_links_are_not_judged():
    assert said(RULE, *devices(30, nbytes=32 << 20)).status is Status.NOT_APPLICABLE


def test_unknown_accelerators_are_not_judged():
    assert said(RULE, *devices(30, machine=machines.pcie_ethernet())).status is Status.UNKNOWN


def test_nothing_to_match_does_not_apply_or_cannot_be_told():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE
    assert said(RULE, zero_rank(0)).status is Status.UNKNOWN  # its other rank left no trace
