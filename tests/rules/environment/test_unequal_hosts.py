from __future__ import annotations

import pytest

from dsprof.environment.machine import Adapter
from dsprof.findings.finding import Severity, Status
from dsprof.rules.environment.unequal_hosts import UnequalHosts
from tests.factories import machines
from tests.factories.environment import judge, rank_trace

RULE = UnequalHosts()


def on_hosts(*hosts, variables=None, **details):
    """One rank on each host."""
    traces = []
    for rank, machine in enumerate(hosts):
        trace = rank_trace(rank, variables, **{**machine, **details})
        trace.header.host = f"node-{rank}"
        traces.append(trace)
    return judge(RULE, *traces)


def changed(**parts):
    """A DGX of which some parts are other."""
    machine = machines.h100_infiniband()
    for name, part in parts.items():
        machine[name] = machine[name] | part if isinstance(part, dict) else part
    return machine


def ports(count, state="ACTIVE"):
    return [Adapter(f"mlx5_{n}:1", "mlx5_core", "InfiniBand", "", state) for n in range(count)]


@pytest.mark.parametrize(
    ("other", "severity", "says"),
    [
        (changed(versions={"nccl": "2.26.2"}), "high", "2.26.2 on rank 2"),
        (changed(versions={"torch": "2.7.1"}), "high", "torch version"),
        (changed(adapters=ports(7)), "high", "7 of infiniband on rank 2"),
        (changed(adapters=ports(8, "DOWN")), "high", "none on rank 2"),
        (changed(accelerators=machines.nodes(8, "NVIDIA A100-SXM4-80GB")), "medium", "A100"),
        (changed(machine={"nvidia_driver": "535.1 open"}), "medium", "535.1 open"),
    ],
)
def test_a_host_that_is_other_fails(other, severity, says):
    (finding,) = on_hosts(machines.h100_infiniband(), machines.h100_infiniband(), other)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity(severity))
    assert finding.ranks == (2,)
    assert says in finding.summary
    assert "more difference" not in finding.summary


def test_one_more_difference_is_not_several():
    other = changed(versions={"nccl": "2.26.2", "torch": "2.7.1"})
    (finding,) = on_hosts(machines.h100_infiniband(), other)
    assert finding.summary.endswith(", and 1 more difference.")


@pytest.mark.parametrize(
    ("others", "ranks"),
    [
        ([changed(adapters=ports(7))] * 2, (1, 2)),
        ([changed(adapters=ports(7))], (1,)),
        ([changed(versions={"torch": "2.7.1"})], ()),
        ([changed(machine={"cpu_clock": "2000 of 3500 MHz"})] * 2, (1, 2)),
    ],
)
def test_hosts_that_lack_something_are_named_however_many(others, ranks):
    first = changed(machine={"cpu_clock": "3500 MHz"})
    (finding,) = on_hosts(first, *others)
    assert finding.ranks == ranks


FAST, SLOW, OLD = (
    {"ethernet": f"{count} of {speed} Mbit/s"}
    for count, speed in ((2, 100_000), (1, 100_000), (2, 10_000))
)


def test_ethernet_counts_where_there_is_nothing_faster():
    hosts = [changed(machine=one, adapters=[]) for one in (FAST, FAST, SLOW)]
    (finding,) = on_hosts(*hosts)
    assert (finding.status, finding.ranks) == (Status.FAIL, (2,))
    assert "1 of 100000 Mbit/s on rank 2" in finding.summary
    assert on_hosts(changed(machine=FAST), changed(machine=SLOW)) == []
    assert on_hosts(changed(machine=FAST, adapters=[]), changed(adapters=[])) == []  # not known


@pytest.mark.parametrize(("other", "fails"), [(SLOW, False), (OLD, True)])
def test_gloo_takes_one_interface(other, fails):
    hosts = [changed(machine=one, adapters=[]) for one in (FAST, FAST, other)]
    found = on_hosts(*hosts, backend="gloo")
    assert [(one.status, "10000 Mbit/s on rank 2" in one.summary) for one in found] == [
        (Status.FAIL, True)
    ] * fails


@pytest.mark.parametrize(("value", "fails"), [("eth0", False), ("^docker0", True), ("", True)])
def test_interfaces_beside_one_that_is_named_do_not_count(value, fails):
    hosts = [changed(machine=one, adapters=[]) for one in (FAST, SLOW)]
    assert len(on_hosts(*hosts, variables={"NCCL_SOCKET_IFNAME": value})) == fails


@pytest.mark.parametrize(
    ("name", "usual", "other", "severity"),
    [
        ("cpu_governor", "intel_pstate performance", "intel_pstate powersave", Severity.LOW),
        ("cpu_clock", "3500 MHz", "2000 of 3500 MHz", Severity.MEDIUM),
    ],
)
def test_a_host_with_another_clock_fails(name, usual, other, severity):
    hosts = [changed(machine={name: one}) for one in (usual, usual, other)]
    (finding,) = on_hosts(*hosts)
    assert (finding.severity, finding.ranks) == (severity, (2,))
    assert f"{other} on rank 2" in finding.summary


@pytest.mark.parametrize(
    ("name", "usual", "other"),
    [
        ("cpu_clock", "3717 MHz", "3692 MHz"),  # as CPUs of one model differ
        ("cpu_clock", "not", "known"),
        ("cpu_governor", "intel_pstate performance", "acpi-cpufreq performance"),
    ],
)
def test_clocks_that_hardly_differ_pass(name, usual, other):
    assert on_hosts(*(changed(machine={name: one}) for one in (usual, usual, other))) == []


def test_equal_hosts_pass():
    assert on_hosts(machines.h100_infiniband(), machines.h100_infiniband()) == []


def test_adapters_that_nccl_is_kept_from_do_not_count():
    more = [*ports(8), Adapter("mlx5_9:1", "mlx5_core", "InfiniBand", "", "ACTIVE")]
    hosts = machines.h100_infiniband(), changed(adapters=more)
    assert on_hosts(*hosts)[0].status is Status.FAIL
    for value in ("=mlx5_0,mlx5_1", "^mlx5_9:1"):
        assert on_hosts(*hosts, variables={"NCCL_IB_HCA": value}) == []


def test_a_port_that_came_up_at_a_lower_rate_is_seen_and_its_width_is_not():
    def rated(*rates):
        return changed(
            adapters=[
                Adapter(f"mlx5_{n}:1", "mlx5_core", "InfiniBand", rate, "ACTIVE")
                for n, rate in enumerate(rates)
            ]
        )

    usual = rated("400 Gb/sec (4X NDR)", "400 Gb/sec (4X NDR)")
    (finding,) = on_hosts(usual, usual, rated("400 Gb/sec (4X NDR)", "100 Gb/sec (1X NDR)"))
    assert (finding.severity, finding.ranks) == (Severity.MEDIUM, (2,))
    assert "rate of the slowest adapter port differs: 100 Gb/sec on rank 2" in finding.summary
    assert on_hosts(usual, rated("400 Gb/sec (4X NDR)", "400 Gb/sec (8X HDR)")) == []
    assert on_hosts(usual, rated("", "400 Gb/sec (4X NDR)")) == []  # unknown is not slow


def test_ethernet_ports_do_not_count():
    more = [*ports(8), Adapter("mlx5_9:1", "mlx5_core", "Ethernet", "", "ACTIVE")]
    assert on_hosts(machines.h100_infiniband(), changed(adapters=more)) == []


def test_what_may_be_meant_is_information():
    other = changed(machine={"cpu_vendor": "AuthenticAMD"})
    (finding,) = on_hosts(machines.h100_infiniband(), other)
    assert finding.status is Status.INFO


def test_adapters_and_nccl_do_not_matter_to_gloo():
    other = changed(adapters=[], versions={"nccl": "2.1"})
    assert on_hosts(machines.h100_infiniband(), other, backend="gloo") == []


def test_one_rank_has_nothing_to_compare():
    (finding,) = on_hosts(machines.h100_infiniband())
    assert finding.status is Status.NOT_APPLICABLE


def test_ranks_that_tell_nothing_of_their_host_are_left_out():
    assert on_hosts(machines.h100_infiniband(), {}) == []
