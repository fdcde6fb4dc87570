"""late-rank over several hosts whose collectives run on devices."""

from __future__ import annotations

import re

import pytest

from dsprof.environment import EnvSnapshot
from dsprof.findings.finding import Status
from dsprof.rules import RULES
from dsprof.rules.communication.late_rank import LateRank
from dsprof.rules.communication.slow_link import SlowLink
from dsprof.rules.runner import judge
from dsprof.trace.joining import attach
from dsprof.trace.rank_trace import RankTrace
from tests.factories import device, kineto
from tests.factories.hosts import clock, device_run
from tests.factories.machines import nodes
from tests.factories.trace import (
    MS,
    enqueued,
    group,
    header,
    rank_trace,
    said,
    stall,
    step,
    summary,
    sync,
)

RULE = LateRank()

HOSTS = [("a", clock()), ("b", clock(7000)), ("c", clock(-20))]


def third_late(by: float):
    return lambda rank, k: 10.0 + by * (rank == 2) + (k * 7 + rank * 3) % 5 / 10


def test_the_late_rank_of_another_host_is_named_with_the_bound():
    finding = said(RULE, *device_run(HOSTS, third_late(50)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (2,))
    assert "arrival times are accurate to" in finding.summary
    assert finding.saving_ms_per_step is not None
    assert 40 < finding.saving_ms_per_step[1] < 65


def test_late_ranks_of_a_host_of_their_own_tell_the_host():
    hosts = [HOSTS[0], HOSTS[0], HOSTS[1], HOSTS[1]]
    late = device_run(hosts, lambda rank, k: 10.0 + 50 * (rank > 1) + (k * 7 + rank * 3) % 5 / 10)
    finding = said(RULE, *late)
    assert (finding.status, finding.ranks) == (Status.FAIL, (2, 3))
    assert finding.cause.startswith("They are all the ranks of b, and no other rank runs there. ")
    assert finding.action.startswith("Compare b with the other hosts")


@pytest.mark.parametrize(("late_ms", "told"), [(50, "late-rank"), (0, "unequal-hosts")])
def test_a_late_host_with_another_device_is_told_once(late_ms, told):
    hosts = [HOSTS[0], HOSTS[0], HOSTS[1], HOSTS[1]]
    run = device_run(
        hosts, lambda rank, k: 10.0 + late_ms * (rank > 1) + (k * 7 + rank * 3) % 5 / 10
    )
    for one in run:
        name = "NVIDIA H100 PCIe" if one.rank > 1 else "NVIDIA H100 80GB HBM3"
        one.environment = EnvSnapshot(accelerators=nodes(2, name), machine={"vendor": "NVIDIA"})
    rules = [rule for rule in RULES if rule.meta.id in ("late-rank", "unequal-hosts")]
    (found,) = (one for one in judge(summary(*run), rules) if one.status is Status.FAIL)
    assert (found.rule, found.ranks) == (told, (2, 3) if late_ms else ())
    assert [one.rule for one in found.facets] == (["unequal-hosts"] if late_ms else [])


@pytest.mark.parametrize(
    ("part", "usual", "other", "is_of_speed"),
    [
        ("machine", {"nvidia_driver": "550.1"}, {"nvidia_driver": "535.1"}, True),
        ("machine", {"cpu_governor": "a performance"}, {"cpu_governor": "a powersave"}, True),
        ("versions", {"nccl": "2.27.3"}, {"nccl": "2.26.2"}, False),
    ],
)
def test_only_what_differs_in_speed_is_told_with_the_late_host(part, usual, other, is_of_speed):
    hosts = [HOSTS[0]] * 4 + [HOSTS[1]] * 2
    run = device_run(hosts, lambda rank, k: 70.0 + 25 * (rank > 3) + (k * 7 + rank * 3) % 5 / 10)
    for one in run:
        machine = {"accelerators": nodes(2, "NVIDIA H100"), "machine": {}, "versions": {}}
        one.environment = EnvSnapshot(**machine | {part: other if one.rank > 3 else usual})
    rules = [rule for rule in RULES if rule.meta.id in ("late-rank", "unequal-hosts")]
    found = [one for one in judge(summary(*run), rules) if one.status is Status.FAIL]
    assert sorted(one.rule for one in found) == ["late-rank", "unequal-hosts"][: 2 - is_of_speed]


def test_hosts_that_work_in_step_and_are_late_in_turn_are_no_late_host():
    """Of 8 ranks 4 are late together by chance as often as one of two would be."""
    hosts = [HOSTS[0]] * 4 + [HOSTS[1]] * 4

    def arrive(rank: int, k: int) -> float:
        return 10.0 + 50 * ((rank > 3) == (k % 4 > 0)) + rank / 10

    finding = said(RULE, *device_run(hosts, arrive, count=20))
    assert (finding.status, finding.title) == (Status.INFO, "Ranks wait for each other in turn")


@pytest.mark.parametrize(
    ("count", "why"),
    [
        (7, "5 of 5 steps, which may be chance."),
        (10, "8 of 8 steps, but the measured steps last 800 ms together"),
    ],
)
def test_a_host_that_is_late_in_too_few_steps_is_not_said_to_be_late_in_turn(count, why):
    hosts = [HOSTS[0]] * 4 + [HOSTS[1]] * 4
    finding = said(RULE, *device_run(hosts, lambda rank, k: 10.0 + 50 * (rank > 3), count=count))
    assert finding.status is Status.UNKNOWN
    assert finding.summary.startswith(f"Unknown: ranks 4-7 are late together in {why}")
    assert finding.problem == "Ranks 4-7 may delay every step by 50.0 ms (50 %)"


def test_many_late_hosts_are_counted():
    hosts = [(name, clock()) for name in "aaaaaaabcdefg"]
    late = device_run(hosts, lambda rank, k: 10.0 + 50 * (rank > 6) + (k * 7 + rank * 3) % 5 / 10)
    finding = said(RULE, *late)
    assert finding.ranks == tuple(range(7, 13))
    assert finding.cause.startswith("They are all the ranks of b, c, d, e and 2 more, and no")


def test_a_late_host_among_many_ranks_is_named_with_its_latest_rank():
    hosts = [HOSTS[0]] * 33 + [HOSTS[1]] * 3
    late = device_run(hosts, lambda rank, k: 10.0 + 50 * (rank > 32) + (k * 7 + rank * 3) % 5 / 10)
    finding = said(RULE, *late)
    assert (finding.status, finding.ranks) == (Status.FAIL, (33, 34, 35))
    assert finding.fix == "Compare b with the other hosts"
    assert finding.cause.startswith("They are all the ranks of b, and no other rank runs there.")
    assert re.search(r"Rank 3\d is the latest of them\. ", finding.cause)


def paired(members: int, slow: int, first: int = 0, count: int = 20) -> list[RankTrace]:
    """Pairs that reduce alike, one takes 20 ms longer from step `first` on; then all ranks meet."""
    traces = []
    for number in range(2 * members):
        mine = [2 * (number // 2), 2 * (number // 2) + 1]
        comm, steps, begin = [], [], 0
        for k in range(count):
            at, longer = begin + 40, 20 * (k >= first)
            took = 10 + longer * (number // 2 == slow)
            comm.append(sync("all_reduce", at, took, group=2, seq=k, step=k))
            comm.append(sync("all_reduce", at + took, 15 + longer - took, group=1, seq=k, step=k))
            steps.append(step(k, begin, begin + 80 + longer))
            begin += 80 + longer
        pair = group(id=2, key=f"pair {mine}", label="data", role="data", ranks=mine)
        groups = {1: group(2 * members), 2: pair}
        traces.append(rank_trace(number, 2 * members, comm=comm, steps=steps, groups=groups))
    return traces


@pytest.mark.parametrize("members", [2, 4, 18])
def test_ranks_that_come_late_from_a_slow_collective_are_not_said_to_work_longer(members):
    finding = said(RULE, *paired(members, slow=1))
    assert (finding.status, finding.ranks) == (Status.FAIL, (2, 3))
    assert "collectives take 20.0 ms per step longer" in finding.cause
    assert "compute" not in finding.cause
    assert "their threads that communicate get less processor time" in finding.cause
    assert finding.fix == "Leave free cores to each rank"
    assert finding.explains_ms == pytest.approx(20)  # their own transfer is exposed as well


def test_transfers_are_no_cause_where_only_some_late_ranks_take_longer_for_them() -> None:
    """Rank 0 works 20 ms longer, ranks 2 and 3 take 20 ms longer to reduce."""
    traces = paired(4, slow=1)
    for rank in (0, 1):
        rows = traces[rank].collectives
        for name in ("return_ns", "waited_ns", "done_ns"):
            getattr(rows, name)[::2] += 20 * MS
        came = slice(None) if rank == 0 else slice(1, None, 2)  # rank 1 waits for it
        rows.issue_ns[came] += 20 * MS
        rows.wait_ns[came] += 20 * MS
        rows.blocked_ns[::2] += 20 * MS * rank
        rows.blocked_ns[1::2] -= 20 * MS
    finding = said(RULE, *traces)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0, 2, 3))
    assert "collectives take" not in finding.cause
    found = {one.rule: one.status for one in judge(summary(*traces), [RULE, SlowLink()])}
    assert found == {"late-rank": Status.FAIL, "slow-link": Status.INFO}


def test_a_slow_link_is_not_reported_as_late_ranks_too() -> None:
    findings = judge(summary(*paired(4, slow=1)), [RULE, SlowLink()])
    found = {one.rule: one for one in findings}
    assert found["late-rank"].status is Status.NOT_APPLICABLE
    assert found["late-rank"].summary.endswith("Covered by slow-link.")
    assert [one.rule for one in found["slow-link"].facets] == ["late-rank"]
    assert found["slow-link"].fix == "Leave free cores to each rank"


@pytest.mark.parametrize(
    ("first", "lead"),
    [
        (31, "slow-link"),  # of steps 2 to 61 half
        (46, "late-rank"),  # the usual transfer of the pair is as fast as that of others
    ],
)
def test_a_link_that_is_slow_from_a_step_on_is_one_finding(first: int, lead: str) -> None:
    """It was a second one that steps take longer from there on, for all ranks wait."""
    run = summary(*paired(4, slow=1, first=first, count=62))
    [failed] = [one for one in judge(run, RULES) if one.status is Status.FAIL]
    facets = {one.rule: one.summary for one in failed.facets}
    assert failed.rule == lead
    assert "step-time-change" in facets
    assert f"late from step {first} on" in facets.get("late-rank", failed.summary)
    if failed.saving_ms_per_step:
        assert sum(failed.saving_ms_per_step) / 2 == pytest.approx(20 * (62 - first) / 60, rel=0.1)


@pytest.mark.parametrize("hosts", [2, 3, 8])
@pytest.mark.parametrize(("late", "status"), [(30, Status.FAIL), (0, Status.PASS)])
def test_a_rank_that_is_always_late_to_other_hosts_is_told_by_the_ends(
    hosts: int, late: float, status: Status
) -> None:
    """By arrivals and ends, half of its delay may be an offset of its host's clock."""
    traces = []
    for number in range(hosts):
        come = [40 + late * (number == 1) + (3 * k + number) % 7 / 3 for k in range(42)]
        comm = [
            sync("all_reduce", 100 * k + at, 43 + late - at, seq=k, step=k)
            for k, at in enumerate(come)
        ]
        steps = [step(k, 100 * k, 100 * k + 100) for k in range(42)]
        head = header(number, hosts, host=f"{number}", boot_id=f"{number}")
        traces.append(rank_trace(number, hosts, comm=comm, steps=steps, head=head))
    finding = said(RULE, *traces)
    assert (finding.status, finding.ranks) == (status, (1,) * bool(late))


def test_adapters_are_blamed_only_where_there_can_be_several():
    """Ranks on CPUs of one host all send over its loopback."""
    traces = paired(2, slow=1)
    traces[3].header = header(3, 4, host="b", boot_id="b")
    finding = said(RULE, *traces)
    assert "their links are slower" in finding.cause
    assert finding.fix == "Compare adapters and port errors"


def test_what_lies_below_the_bound_shows_in_blocked_time():
    finding = said(RULE, *device_run(HOSTS, third_late(8), bound_ms=15))
    assert (finding.status, finding.ranks) == (Status.FAIL, (2,))
    assert finding.summary == (
        "Rank 2 delays the others by 7.99 ms per step (8 %): it is blocked least in 38 of the "
        "38 steps that have one late rank; blocked times are compared, because arrival times are "
        "accurate only to 17.1 ms."
    )
    assert finding.confidence == "medium"
    assert finding.evidence[0].rows[0] == (2, 38, 0)
    # Also where arrivals show no late rank, or the same one.
    for late, status in ((0, Status.PASS), (50, Status.FAIL)):
        finding = said(RULE, *device_run(HOSTS, third_late(late), bound_ms=15))
        assert finding.status is status
        assert "blocked times are compared" in finding.summary


@pytest.mark.parametrize(
    ("late", "calls", "status"),
    [(2, 1, Status.PASS), (3, 1, Status.PASS), (2, 6, Status.FAIL)],
    ids=["at most 4 ms", "perhaps 6 ms, in fact 3", "12 ms, but no arrival tells"],
)
def test_waits_below_the_bound_are_compared_by_blocked_time(late, calls, status):
    """Rank 0 is late to each call of a step of 100 ms; arrival times are accurate to 4 ms."""
    traces = device_run([("a", clock())] * 4, lambda rank, k: 4.0 - rank % 2 - (rank > 0) * late)
    for trace in traces:
        trace.stalls, comm = [], []
        for k in range(40):
            for n in range(calls):
                at = 100 * k + 15 * n + late * (trace.rank == 0)
                comm.append(enqueued("all_reduce", 100 * k, seq=calls * k + n, step=k))
                end = 100 * k + 15 * n + 5
                trace.stalls.append(stall(comm[-1], "collective", at, end, bound_ns=4 * MS))
        trace.collectives = rank_trace(trace.rank, 4, comm=comm).collectives
    assert said(RULE, *traces).status is status


def test_ranks_that_arrive_together_pass_where_the_bound_is_narrow():
    assert said(RULE, *device_run(HOSTS, third_late(0))).status is Status.PASS


def test_one_host_is_no_better_than_the_place_of_its_devices():
    one = [("a", clock())] * 3
    assert said(RULE, *device_run(one, third_late(8), bound_ms=15)).status is Status.UNKNOWN
    assert said(RULE, *device_run(one, third_late(50), bound_ms=1)).ranks == (2,)


def profiled(compute_ms: float) -> list[RankTrace]:
    """Rank 1 comes 50 ms later; it computes for so long of the 60 ms before."""
    arrive, compute = (10.0, 60.0), (10.0, compute_ms)
    traces = device_run([HOSTS[0]] * 2, lambda rank, k: arrive[rank])
    for rank, trace in enumerate(traces):
        events = []
        for at in range(0, 4000, 100):
            events += [kineto.step(at // 100, at, 100), kineto.kernel("gemm", at, compute[rank])]
            events.append(kineto.collective(at + arrive[rank], 62 - arrive[rank]))
        attach(trace, device.rank(events, rank))
    return traces


@pytest.mark.parametrize(
    ("compute_ms", "cause"),
    [
        (60, "computing kernels take 50.0 ms longer"),
        (10, "is idle for 50.0 ms more"),
        (35, "no part of its step explains the delay"),
    ],
)
def test_a_profile_beside_tells_why_a_rank_is_late(compute_ms, cause):
    finding = said(RULE, *profiled(compute_ms))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert cause in finding.cause
    labels = [column.label for column in finding.evidence[1].columns]
    assert labels == ["rank", "computing kernels", "copies", "device idle"]


def test_a_device_without_a_profile_is_not_said_to_compute():
    """Two buckets per step; on a device the host may be what is slow between them."""
    comm, stalls = ([], []), ([], [])
    for rank, last in enumerate((20, 80)):
        for k in range(40):
            for n, (start, end) in enumerate(((10, 11), (last, 90))):
                comm[rank].append(enqueued("all_reduce", 100 * k, seq=2 * k + n, step=k))
                at = 100 * k
                stalls[rank].append(stall(comm[rank][-1], "collective", at + start, at + end))
    steps = [step(k, 100 * k, 100 * k + 100) for k in range(40)]
    finding = said(
        RULE,
        *(
            rank_trace(
                r, comm=comm[r], stalls=stalls[r], steps=steps, head=header(r, device="cuda")
            )
            for r in range(2)
        ),
    )
    assert "it computes longer, or its host launches work late" in finding.cause
    assert "torch.profiler" in finding.action


@pytest.mark.parametrize(("bound_ms", "confidence"), [(0, "high"), (1, "medium")])
def test_a_bound_leaves_less_confidence(bound_ms, confidence):
    one = [("a", clock())] * 3
    finding = said(RULE, *device_run(one, third_late(50), bound_ms=bound_ms))
    assert (finding.ranks, finding.confidence) == ((2,), confidence)
