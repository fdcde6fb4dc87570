"""The rules that are rows of `knowledge/settings.csv`."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.local_environment import environment_rules
from dsprof.environment.machine import Adapter
from dsprof.findings.finding import Severity, Status
from dsprof.rules import RULES
from dsprof.rules.environment.platform import QUESTIONS
from dsprof.rules.environment.settings_rule import SettingsRule, asked_of, table
from dsprof.rules.environment.variable_values import matches
from dsprof.rules.runner import judge as judge_run
from tests.factories import machines
from tests.factories.environment import facts_of, judge, rank_trace
from tests.factories.trace import group

TABLED = {rule.meta.id: rule for rule in RULES if isinstance(rule, SettingsRule)}

TWO_HOSTS = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
ONE_HOST = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}


def found(rule, machine, variables, **details):
    trace = rank_trace(0, variables, **{**machine, **details})
    return judge(TABLED[rule], trace)


def statuses(*arguments, **details):
    return [finding.status for finding in found(*arguments, **details)]


def test_every_row_can_be_asked():
    for row in table():
        assert row.rule in TABLED, row
        assert all(question.removeprefix("!") in QUESTIONS for question in row.where), row
        assert row.severity == "info" or Severity(row.severity) is not Severity.NONE, row
        assert isinstance(matches(asked_of(row, TABLED[row.rule].thresholds), "1"), bool), row
        assert row.effect[-1] != ".", row
        assert row.action[-1] == ".", row
        assert len(row.backends) == 1, row  # none is for every backend


@pytest.mark.parametrize("rule", ["NCCL_ALGO", "NCCL_BUFFSIZE"])
def test_a_long_value_is_cut_in_a_sentence_and_whole_in_the_evidence(rule):
    value = "9" * 100_000
    (finding,) = found("forced-algorithm", {}, {rule: value})
    assert f"{rule}={'9' * 60}… (100,000 characters)" in finding.summary
    assert len(finding.summary) < 500
    assert value in finding.evidence[0].rows[0]


@pytest.mark.parametrize(
    ("test", "value", "expected"),
    [
        ("unset", "", True),
        ("unset", "0", False),
        ("set", "", False),
        ("set", "x", True),
        ("=1", "1", True),
        ("=1", "0x1", True),
        ("=1", "2", False),
        ("nonzero", "2", True),
        ("nonzero", "true", False),  # NCCL reads 0
        ("zero", "false", True),
        ("zero", "", False),
        ("is LOC|0", "LOC", True),
        ("is LOC|0", "loc", False),
        ("is-not LOC", "PIX", True),
        ("is-not LOC", "", False),
        ("not 1", "", True),
        ("not 1", "1", False),
        ("before 2.29.3", "2.29.2", True),
        ("before 2.29.3", "2.29.3+cuda13", False),
        ("before 6.3", "6.2.41133-dd7f95766", True),
        ("before 6.3", "6.4.43482", False),
        ("before 6.3", "unknown", False),
    ],
)
def test_values_are_read_as_the_libraries_do(test, value, expected):
    assert matches(test, value) is expected


@pytest.mark.parametrize(
    ("rule", "machine", "variables", "severity"),
    [
        ("disabled-transport", "h100_infiniband", {"NCCL_P2P_DISABLE": "1"}, "critical"),
        ("disabled-transport", "h100_infiniband", {"NCCL_P2P_LEVEL": "LOC"}, "critical"),
        ("disabled-transport", "h100_infiniband", {"NCCL_IB_DISABLE": "1"}, "critical"),
        ("disabled-transport", "h100_infiniband", {"NCCL_NET": "Socket"}, "critical"),
        ("disabled-transport", "h100_infiniband", {"NCCL_NET_GDR_LEVEL": "0"}, "high"),
        ("disabled-transport", "h100_infiniband", {"NCCL_NVLS_ENABLE": "0"}, "medium"),
        ("disabled-transport", "pcie_ethernet", {"NCCL_SHM_DISABLE": "1"}, "high"),
        ("disabled-transport", "aws_efa", {"NCCL_NET_PLUGIN": "none"}, "critical"),
        ("disabled-transport", "aws_efa", {"FI_PROVIDER": "tcp;ofi_rxm"}, "critical"),
        ("disabled-transport", "slingshot", {"NCCL_P2P_DISABLE": "1"}, "critical"),
        ("forced-algorithm", "h100_infiniband", {"NCCL_PROTO": "LL128,Simple"}, "high"),
        ("forced-algorithm", "h100_infiniband", {"NCCL_PROTO": "ll"}, "high"),
        ("forced-algorithm", "h100_infiniband", {"NCCL_PROTO": "Simple"}, "medium"),
        ("forced-algorithm", "h100_infiniband", {"NCCL_ALGO": "Tree"}, "medium"),
        ("forced-algorithm", "slingshot", {"NCCL_MIN_NCHANNELS": "112"}, "medium"),
        ("unknown-value", "pcie_ethernet", {"NCCL_P2P_LEVEL": "sys"}, "medium"),
        ("unknown-value", "pcie_ethernet", {"NCCL_DEBUG": "DEBUG"}, "low"),
        ("unknown-value", "pcie_ethernet", {"TORCH_NCCL_BLOCKING_WAIT": "on"}, "high"),
        ("incomplete-platform-profile", "azure", {}, "high"),
        ("incomplete-platform-profile", "aws_efa", {"RDMAV_FORK_SAFE": "1"}, "high"),
        (
            "incomplete-platform-profile",
            "h100_infiniband",
            {"NCCL_TOPO_FILE": "/opt/microsoft/ndv5-topo.xml"},
            "high",
        ),
    ],
)
def test_a_harmful_setting_fails_on_a_machine_where_it_costs(rule, machine, variables, severity):
    machine = getattr(machines, machine)()
    (finding,) = [f for f in found(rule, machine, TWO_HOSTS | variables) if f.status is Status.FAIL]
    assert finding.severity is Severity(severity)
    assert finding.ranks == (0,)
    assert finding.cause
    assert finding.action
    for name, value in variables.items():
        assert f"{name}={value}" in finding.summary
        assert (name, value) in [row[:2] for row in finding.evidence[0].rows]


@pytest.mark.parametrize(
    ("rule", "machine", "variables"),
    [
        ("disabled-transport", "pcie_ethernet", {"NCCL_P2P_DISABLE": "1"}),
        ("forced-algorithm", "h100_infiniband", {"NCCL_ALGO": "^NVLS"}),
        ("forced-algorithm", "h100_infiniband", {"NCCL_PROTO": "^LL128"}),
        ("deprecated-variable", "h100_infiniband", {"NCCL_BLOCKING_WAIT": "0"}),
        ("deprecated-variable", "h100_infiniband", {"NCCL_P2P_LEVEL": "3"}),
        ("deprecated-variable", "aws_efa", {"FI_EFA_USE_DEVICE_RDMA": "1"}),
    ],
)
def test_what_may_be_meant_is_information(rule, machine, variables):
    (finding,) = found(rule, getattr(machines, machine)(), TWO_HOSTS | variables)
    assert (finding.status, finding.severity) == (Status.INFO, Severity.NONE)
    assert next(iter(variables)) in finding.summary


@pytest.mark.parametrize(
    ("machine", "variables"),
    [
        (machines.h100_infiniband(), {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "=mlx5_0,mlx5_1"}),
        (machines.pcie_ethernet(), {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}),
        (machines.aws_efa(), {"FI_PROVIDER": "efa", "NCCL_IB_DISABLE": "1"}),
        (machines.azure(), {"NCCL_TOPO_FILE": "/opt/microsoft/ndv5-topo.xml"}),
        (machines.slingshot(), machines.FRONTIER_PROFILE),
        (
            machines.h100_infiniband()
            | {"machine": {"vendor": "Google", "architecture": "x86_64"}, "adapters": []},
            machines.GOOGLE_PROFILE,
        ),
    ],
    ids=["dgx", "pcie", "aws", "azure", "frontier", "google"],
)
def test_official_profiles_raise_no_alarm(machine, variables):
    interfaces = [f"{name} up" for name in ("eth0", "hsn0", "hsn1", "hsn2", "hsn3")]
    given = machine | {"libraries": ["/lib/libnccl.so.2", "/lib/libnccl-net.so"]}
    trace = rank_trace(0, TWO_HOSTS | variables, **given, network_devices=interfaces)
    run = RunSummary([facts_of(trace)])
    findings = [finding for rule in environment_rules() for finding in judge_run(run, [rule])]
    alarms = (Status.FAIL, Status.UNKNOWN, Status.ERROR)
    unknown_in_part = ("misplaced-process",)  # these machines tell of no CPUs
    assert [
        f.summary for f in findings if f.status in alarms and f.rule not in unknown_in_part
    ] == []


def test_without_hardware_it_could_not_tell_and_says_what_is_missing():
    (finding,) = found("disabled-transport", {}, TWO_HOSTS | {"NCCL_IB_DISABLE": "1"})
    assert finding.status is Status.UNKNOWN
    assert "NCCL_IB_DISABLE=1" in finding.summary
    assert "which network adapters the hosts have" in finding.summary


def test_an_accelerator_of_an_unknown_name_could_not_tell():
    machine = machines.h100_infiniband()
    machine["accelerators"] = machines.nodes(8, "Brand New 1")
    assert statuses("disabled-transport", machine, {"NCCL_P2P_DISABLE": "1"}) == [Status.UNKNOWN]


def test_a_network_setting_does_not_matter_on_one_host():
    machine = machines.h100_infiniband()
    assert found("disabled-transport", machine, ONE_HOST | {"NCCL_IB_DISABLE": "1"}) == []


def test_an_adapter_that_is_down_is_no_faster_path():
    machine = machines.h100_infiniband()
    machine["adapters"] = [Adapter("mlx5_0:1", "mlx5_core", "InfiniBand", "", "DOWN")]
    assert found("disabled-transport", machine, TWO_HOSTS | {"NCCL_IB_DISABLE": "1"}) == []


@pytest.mark.parametrize("rule", sorted(TABLED.keys() - {"host-setting"}))
def test_settings_of_nccl_are_not_applicable_to_gloo(rule):
    variables = TWO_HOSTS | {"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Tree"}
    (finding,) = found(rule, machines.h100_infiniband(), variables, backend="gloo")
    assert finding.status is Status.NOT_APPLICABLE
    assert "NCCL, RCCL" in finding.summary
    assert "gloo" in finding.summary


def test_partial_slingshot_settings_are_one_finding_that_names_them():
    variables = dict(machines.FRONTIER_PROFILE, FI_CXI_RDZV_PROTO="default")
    del variables["FI_CXI_DEFAULT_CQ_SIZE"]
    findings = found("incomplete-platform-profile", machines.slingshot(), TWO_HOSTS | variables)
    (finding,) = [f for f in findings if f.status is Status.FAIL]
    assert "FI_CXI_DEFAULT_CQ_SIZE is not set" in finding.summary
    assert "FI_CXI_RDZV_PROTO=default" in finding.summary


def test_a_value_in_a_configuration_file_counts():
    files = {"/etc/nccl.conf": {"NCCL_TOPO_FILE": "/opt/microsoft/ndv5-topo.xml"}}
    azure = machines.azure()
    assert statuses("incomplete-platform-profile", azure, TWO_HOSTS, files=files) == []


QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@pytest.mark.parametrize(
    ("roles", "accelerator", "status"),
    [
        (["data"], "NVIDIA H100 80GB HBM3", Status.FAIL),
        (["data", "tensor"], "NVIDIA H100 80GB HBM3", Status.INFO),
        (["data", "tensor"], "NVIDIA B200", Status.FAIL),
        (["data", ""], "NVIDIA H100 80GB HBM3", Status.UNKNOWN),
        ([], "NVIDIA H100 80GB HBM3", Status.UNKNOWN),
    ],
)
def test_one_hardware_queue_is_right_for_tensor_parallelism_alone(roles, accelerator, status):
    machine = machines.h100_infiniband()
    machine["accelerators"] = machines.nodes(8, accelerator)
    trace = rank_trace(0, QUEUE, **machine)
    trace.groups = {
        number: group(id=number, ranks=[0], role=role) for number, role in enumerate(roles, 1)
    }
    (finding,) = judge(TABLED["single-hardware-queue"], trace)
    assert finding.status is status
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in finding.summary


def test_a_queue_of_amd_is_fine_with_high_priority_streams():
    machine = machines.slingshot()
    one = {"GPU_MAX_HW_QUEUES": "1"}
    assert statuses("single-hardware-queue", machine, one) == [Status.FAIL]
    both = one | {"TORCH_NCCL_HIGH_PRIORITY": "1"}
    assert statuses("single-hardware-queue", machine, both) == []


def test_deepspeed_is_not_blamed_on_its_user():
    machine = machines.h100_infiniband()
    variables = {"NCCL_ASYNC_ERROR_HANDLING": "1"}
    assert statuses("deprecated-variable", machine, variables) == [Status.INFO]
    machine["versions"] = {"deepspeed": "0.19.8"}
    assert statuses("deprecated-variable", machine, variables) == []


SMALL = {"shm_bytes": 64 << 20}


@pytest.mark.parametrize(
    ("machine", "changes", "severity", "says"),
    [
        ("pcie_ethernet", {"limits": SMALL}, "high", "The size of /dev/shm is 64.0 MiB"),
        ("h100_infiniband", {"limits": {"memlock_bytes": 65536}}, "high", "64.0 KiB"),
        ("h100_infiniband", {"limits": {"stack_bytes": -1}}, "medium", "stack is unlimited"),
        ("h100_infiniband", {"modules": "ib_core"}, "high", "550.54.15 proprietary"),
        ("h100_infiniband", {"verbs_devices": "0"}, "critical", "devices in /dev/infiniband is 0"),
        ("slingshot", {"numa_balancing": "1"}, "medium", "kernel.numa_balancing is 1"),
        ("slingshot", {"iommu": "default"}, "medium", "the IOMMU is default"),
    ],
)
def test_a_limit_or_setting_of_the_host_fails_where_it_matters(machine, changes, severity, says):
    machine = getattr(machines, machine)()
    limits = changes.pop("limits", machine["limits"])
    machine["machine"] = {"may_lock_memory": "no", "virtual": "no"} | machine["machine"] | changes
    machine |= {"limits": limits, "versions": {"nccl": "2.21.5"}}
    (finding,) = found("host-setting", machine, TWO_HOSTS)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity(severity))
    assert says.lower() in finding.summary.lower()


@pytest.mark.parametrize(
    ("machine", "changes"),
    [
        ("h100_infiniband", {"may_lock_memory": "yes"}),  # a capability goes before the limit
        ("pcie_ethernet", {"may_lock_memory": "no"}),
    ],
)
def test_locked_memory_matters_to_rdma_without_the_capability_alone(machine, changes):
    machine = getattr(machines, machine)()
    machine["limits"] = {"memlock_bytes": 65536}
    machine["machine"] = machine["machine"] | changes
    assert found("host-setting", machine, TWO_HOSTS) == []


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"cpu_governor": "acpi-cpufreq powersave"}, [Status.FAIL]),
        ({"cpu_governor": "intel_cpufreq powersave"}, [Status.FAIL]),
        ({"cpu_governor": "intel_pstate powersave"}, []),
        ({"cpu_governor": "amd-pstate-epp powersave"}, []),
        ({"cpu_governor": "acpi-cpufreq performance"}, []),
        ({"cpu_clock": "2000 of 3500 MHz"}, [Status.INFO]),
        ({"cpu_clock": "3500 MHz"}, []),
        ({"cpu_governor": "", "cpu_clock": "fast"}, []),
    ],
)
def test_cpus_that_are_kept_slow(facts, expected, backend):
    machine = machines.h100_infiniband()
    machine["machine"] = machine["machine"] | facts
    assert statuses("host-setting", machine, TWO_HOSTS, backend=backend) == expected


def test_a_small_shared_memory_without_nccl_is_information():
    machine = machines.pcie_ethernet() | {"limits": SMALL}
    (finding,) = found("host-setting", machine, {}, backend="gloo", device="cpu")
    assert finding.status is Status.INFO


def test_the_settings_of_nccl_are_judged_where_it_is_one_of_two_backends():
    machine = machines.h100_infiniband() | {"limits": SMALL}
    (finding,) = found("host-setting", machine, {}, backend="cpu:gloo,cuda:nccl")
    assert finding.status is Status.FAIL


def test_cards_that_may_have_no_gpudirect_are_information():
    machine = machines.h100_infiniband() | {"accelerators": machines.nodes(4, "NVIDIA A10")}
    machine["machine"] = machine["machine"] | {"modules": "none"}
    assert statuses("host-setting", machine, TWO_HOSTS) == [Status.INFO]


@pytest.mark.parametrize("change", [{"virtual": "yes"}, {"kernel": "5.14.21-150500.55.49_cray"}])
def test_the_iommu_is_not_the_users_in_a_virtual_machine_or_on_a_cray(change):
    machine = machines.slingshot()
    machine["machine"] = {"virtual": "no"} | machine["machine"] | {"iommu": "default"} | change
    assert found("host-setting", machine, TWO_HOSTS) == []


@pytest.mark.parametrize(
    ("limits", "thresholds"),
    [
        ({"shm_bytes": 4 << 30}, {"shm_bytes": 8 << 30}),
        ({"memlock_bytes": 20 << 30}, {"memlock_bytes": 32 << 30}),
        ({"nofile": 70_000}, {"open_files": 100_000}),
    ],
)
def test_a_site_sets_what_a_host_should_allow(limits, thresholds):
    rule = TABLED["host-setting"]
    machine = machines.h100_infiniband() | {"limits": limits, "versions": {"nccl": "2.28.9"}}
    trace = rank_trace(0, {"WORLD_SIZE": "128", "LOCAL_WORLD_SIZE": "8"}, **machine)
    run = RunSummary([facts_of(trace)])
    assert list(rule.check(run, rule.thresholds)) == []
    (finding,) = rule.check(run, replace(rule.thresholds, **thresholds))
    assert finding.status is Status.FAIL


def released(*, hosts=TWO_HOSTS, variables=None, machine="h100_infiniband", facts=None, **versions):
    found_there = getattr(machines, machine)()
    found_there["machine"] = found_there["machine"] | (facts or {})
    return found("defective-release", found_there, hosts | (variables or {}), versions=versions)


GRACE = {"architecture": "aarch64", "cpu_vendor": ""}


@pytest.mark.parametrize(
    ("details", "severity"),
    [
        ({"nccl": "2.28.9", "facts": GRACE}, "high"),
        ({"nccl": "2.29.2"}, "medium"),
        ({"nccl": "2.25.1", "cuda": "12.8"}, "low"),
    ],
)
def test_a_release_with_a_known_fault_fails_and_names_a_later_one(details, severity):
    (finding,) = released(**details)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity(severity))
    assert finding.summary.startswith(f"The NCCL version is {details['nccl']}")
    assert "Upgrade to NCCL" in finding.action


@pytest.mark.parametrize(
    "details",
    [
        {"nccl": "2.29.3", "facts": GRACE},
        {"nccl": "2.28.9"},  # x86
        {"nccl": "2.28.9", "facts": GRACE, "hosts": ONE_HOST},
        {"nccl": "2.29.2", "hip": "7.2.0"},  # a number of RCCL's
        {"nccl": "2.26.2", "torch": "2.7.1+cu128"},
        {
            "torch": "2.7.0",
            "nccl": "2.26.2",
            "variables": {"TORCH_NCCL_USE_COMM_NONBLOCKING": "0"},
        },
    ],
)
def test_other_releases_and_places_pass(details):
    assert released(**details) == []


def test_a_fault_that_hangs_on_an_argument_is_information():
    (finding,) = released(torch="2.7.0+cu128", nccl="2.26.2")
    assert (finding.status, "device_id" in finding.summary) == (Status.INFO, True)


@pytest.mark.parametrize(
    ("hip", "kernel", "network", "fails"),
    [
        ("6.2.41133", "6.8.0-51-generic", "Ethernet", True),
        ("6.3.42131", "6.8.0-51-generic", "Ethernet", False),
        ("6.2.41133", "5.15.0-127-generic", "Ethernet", False),
        ("6.2.41133", "6.8.0-51-generic", "InfiniBand", False),
    ],
)
def test_rccl_before_rocm_6_3_over_roce_on_a_new_kernel(hip, kernel, network, fails):
    machine = machines.slingshot() | {"versions": {"hip": hip, "nccl": "2.20.5"}}
    machine["adapters"] = [Adapter("bnxt_re0:1", "bnxt_en", network, "400 Gb/sec", "ACTIVE")]
    machine["machine"] = machine["machine"] | {"kernel": kernel}
    assert statuses("defective-release", machine, TWO_HOSTS) == [Status.FAIL] * fails


def test_a_release_that_is_not_known_could_not_tell():
    (finding,) = released(torch="2.8.0")
    assert (finding.status, "NCCL" in finding.summary) == (Status.UNKNOWN, True)


def test_processors_that_are_not_known_could_not_tell():
    machine = machines.h100_infiniband() | {"versions": {"nccl": "2.28.9"}}
    del machine["machine"]["cpu_vendor"]
    (finding,) = found("defective-release", machine, TWO_HOSTS)
    assert (finding.status, "processors" in finding.summary) == (Status.UNKNOWN, True)


@pytest.mark.parametrize("rule", TABLED)
def test_no_environment_could_not_tell(rule):
    (finding,) = judge(TABLED[rule], rank_trace(0, recorded=False))
    assert finding.status is Status.UNKNOWN


@pytest.mark.parametrize("rule", TABLED)
def test_odd_values_are_no_error(rule):
    odd = {row.name.replace("*", "X"): "\x00 ∞ =,:^" for row in table()}
    for finding in found(rule, machines.slingshot(), odd | {"WORLD_SIZE": "many"}):
        assert finding.status in (Status.FAIL, Status.INFO, Status.UNKNOWN)


@pytest.mark.parametrize("rule", TABLED)
def test_the_page_names_every_variable_of_its_rows(rule, request):
    page = request.config.rootpath / "docs" / "rules" / f"{rule}.md"
    text = page.read_text()
    names = {row.name for row in table() if row.rule == rule and "." not in row.name}
    missing = [name for name in names if not re.search(rf"\b{re.escape(name)}", text)]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "versions", "is_said"),
    [
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", {"torch": "2.8.0"}, False),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", {"torch": "2.9.0"}, True),
        ("TORCH_NCCL_AVOID_RECORD_STREAMS", {"torch": "2.7.1"}, False),
        ("TORCH_NCCL_AVOID_RECORD_STREAMS", {"torch": "2.8.0"}, True),
        ("NCCL_IB_GID_INDEX", {"nccl": "2.20.5"}, False),
        ("NCCL_IB_GID_INDEX", {"nccl": "2.21.5"}, True),
    ],
)
def test_a_variable_is_called_old_from_the_release_on_that_replaced_it(name, versions, is_said):
    said = found("deprecated-variable", machines.h100_infiniband(), {name: "3"}, versions=versions)
    assert any(name in finding.summary for finding in said) == is_said


@pytest.mark.parametrize(("value", "fails"), [("384", False), ("100", True), ("1024", True)])
def test_threads_are_a_multiple_of_a_warp(value, fails):
    said = statuses("unknown-value", machines.h100_infiniband(), {"NCCL_NTHREADS": value})
    assert (Status.FAIL in said) == fails


@pytest.mark.parametrize("level", ["PHB", "SYS", "3", "5"])
def test_every_name_of_a_level_for_slingshot_is_known(level):
    variables = TWO_HOSTS | {"NCCL_NET_GDR_LEVEL": level}
    said = found("incomplete-platform-profile", machines.slingshot(), variables)
    assert not any("NCCL_NET_GDR_LEVEL" in str(finding.evidence) for finding in said)


@pytest.mark.parametrize("said", ["iommu=off", "amd_iommu=off", "amd_iommu=on iommu=pt"])
def test_an_iommu_that_is_off_translates_nothing(said):
    machine = machines.slingshot()
    machine["machine"] = {"virtual": "no"} | machine["machine"] | {"iommu": said}
    assert statuses("host-setting", machine, TWO_HOSTS) == []
