"""The rules that judge logs: each triggers, does not, does not apply, and has too little."""

from __future__ import annotations

import pytest

from dsprof.environment import EnvSnapshot
from dsprof.environment.machine import Adapter
from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication import (
    collective_timeout,
    nccl_warning,
    network_differs_across_ranks,
    transport_fallback,
)
from dsprof.rules.configuration import comms_logger_enabled
from dsprof.rules.environment import (
    sync_debug_variable,
    unparsable_integer_variable,
    variable_differs_across_ranks,
)
from dsprof.rules.memory import device_out_of_memory
from tests.factories import logs as make
from tests.factories.hangs import KEPT, without
from tests.factories.trace import judged, rank_trace

OF_NCCL = (transport_fallback, network_differs_across_ranks, nccl_warning)
IB = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"
SOCKET = "NET/Socket : Using [0]eth0:10.0.0.1<0>"
HEALTHY = make.run(make.every(IB), make.every("Using network IB"))


def findings(module, lines):
    return judged(module.RULE, *make.read(lines))


def one(module, lines):
    (finding,) = findings(module, lines)
    return finding


@pytest.mark.parametrize("module", [*OF_NCCL, collective_timeout, device_out_of_memory])
def test_a_healthy_log_passes_and_no_log_does_not_apply(module):
    assert one(module, HEALTHY).status is Status.PASS
    (finding,) = judged(module.RULE, rank_trace(0), rank_trace(1))
    assert finding.status is Status.NOT_APPLICABLE


def test_sockets_fail_where_something_faster_is_seen():
    lines = make.run(
        make.every(IB, 2),
        make.every("Using network IB", 2),
        [make.said("NET/IB : No device found.", rank) for rank in (2, 3)],
        [make.said(SOCKET, rank) for rank in (2, 3)],
        [make.said("Using network Socket", rank) for rank in (2, 3)],
    )
    finding = one(transport_fallback, lines)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.ranks == (2, 3)
    assert "mlx5_0:1/IB" in finding.summary
    assert finding.cause == "No InfiniBand device on ranks 2-3."


def test_sockets_are_said_as_they_are_where_nothing_faster_is_seen():
    lines = make.run(make.every(SOCKET), make.every("Using network Socket"))
    finding = one(transport_fallback, lines)
    assert finding.status is Status.INFO
    assert "2 hosts by TCP sockets (eth0)" in finding.summary
    inside = [make.said("Using network Socket", rank, host="one") for rank in range(2)]
    inside += [make.ready(rank, 2, host="one") for rank in range(2)]
    assert one(transport_fallback, inside).status is Status.PASS


def test_a_log_without_a_word_on_the_network_leaves_it_open():
    assert one(transport_fallback, make.run()).status is Status.UNKNOWN


def test_the_libfabric_provider_for_tcp():
    lines = make.run(make.every("NET/OFI Selected Provider is tcp (found 1 nics)"))
    assert "provider tcp on ranks 0-3" in one(transport_fallback, lines).summary
    lines = make.run(make.every("NET/OFI Selected Provider is efa (found 4 nics)"))
    assert one(transport_fallback, lines).status is Status.PASS


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
    finding = one(transport_fallback, make.run(lines, *tcp))
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
    found = findings(transport_fallback, make.run(lines)) + findings(nccl_warning, make.run(lines))
    assert not [finding for finding in found if finding.status is Status.FAIL]


def test_inside_a_host_no_provider_is_needed():
    lines = [make.said("NET/OFI No eligible providers were found", rank, "a") for rank in range(2)]
    lines += [make.ready(rank, 2, host="a") for rank in range(2)]
    assert one(transport_fallback, lines).status is Status.PASS


def test_gpudirect_rdma_that_is_off_everywhere():
    state = "NET/IB : GPU Direct RDMA {} for HCA {} 'mlx5_{}'"
    off = make.every(state.format("Disabled", 0, 0))
    finding = one(transport_fallback, make.run(make.every(IB), off))
    assert finding.title == "GPUDirect RDMA is off"
    on = make.every(state.format("Enabled", 1, 1))
    assert one(transport_fallback, make.run(make.every(IB), off, on)).status is Status.PASS


def test_host_memory_between_linked_gpus():
    shm = make.said("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct")
    link = make.said("          + NVL[240.0] - GPU/4C000")
    finding = one(transport_fallback, make.run(make.every(IB), shm, link))
    assert finding.ranks == (0,)
    assert "NVL 240.0 GB/s" in finding.summary
    assert one(transport_fallback, make.run(make.every(IB), shm)).status is Status.PASS
    # Bridges link pairs: the ring goes from one pair to the next through memory.
    pair = make.said("Channel 00 : 1[1] -> 0[0] via P2P/CUMEM/read", rank=1)
    bridged = make.run(make.every(IB), shm, link, pair)
    assert one(transport_fallback, bridged).status is Status.PASS
    far = make.said("Channel 00 : 3[1] -> 2[0] via P2P/CUMEM/read", rank=3)
    assert one(transport_fallback, make.run(make.every(IB), shm, link, far)).ranks == (0,)


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
    (finding,) = judged(transport_fallback.RULE, *traces)
    assert finding.status is status


@pytest.mark.parametrize(
    ("others", "odd", "name", "severity"),
    [
        ("Using network IB", "Using network Socket", "network differs", Severity.CRITICAL),
        ("NET/Plugin: No plugin found (libnccl-net.so)",
         "Plugin Path : /opt/libnccl-net.so", "network plugin differs", Severity.CRITICAL),
        (IB, "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
         "number of network devices differs", Severity.MEDIUM),
        ("NCCL version 2.21.5+cuda12.4", "NCCL version 2.27.3+cuda12.9",
         "version of NCCL differs", Severity.CRITICAL),
        ("Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA",
         "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0", "GPUDirect RDMA", Severity.MEDIUM),
    ],
)  # fmt: skip
def test_what_must_be_alike(others, odd, name, severity):
    finding = one(
        network_differs_across_ranks, make.run(make.every(others, 3), make.said(odd, rank=3))
    )
    assert (finding.severity, finding.ranks) == (severity, (3,))
    assert name in finding.summary
    assert one(network_differs_across_ranks, make.run(make.every(others))).status is Status.PASS


def test_all_that_differs_is_listed_and_counted():
    direct = make.said("Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA", rank=0)
    staged = make.said("Channel 00/0 : 2[0] -> 0[0] [send] via NET/IB/0", rank=2)
    networks = [make.said(f"Using network {'IB' if n < 3 else 'Socket'}", n) for n in range(4)]
    finding = one(network_differs_across_ranks, make.run(networks, direct, staged))
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
    assert one(network_differs_across_ranks, make.run(direct, inside)).status is Status.PASS


def test_one_rank_has_nothing_to_compare():
    assert one(network_differs_across_ranks, make.run(ranks=1)).status is Status.NOT_APPLICABLE


def test_an_interface_that_leads_to_no_other_host():
    lines = make.run(make.every("Bootstrap: Using lo:127.0.0.1<0>"))
    finding = one(network_differs_across_ranks, lines)
    assert "lo" in finding.summary
    assert "NCCL_SOCKET_IFNAME" in finding.action


def test_a_sentence_names_a_few_interfaces_of_many():
    lines = [make.said(f"Bootstrap: Using veth{n}a:10.0.0.1<0>", n) for n in range(4)]
    finding = one(network_differs_across_ranks, make.run(lines))
    assert "interface veth0a, veth1a, veth2a and 1 more, which they cannot reach" in finding.summary


def test_warnings_with_and_without_advice():
    known = make.every("Bootstrap : no socket interface found", level="WARN")
    strange = make.said("the moon is full", level="WARN")
    fails, mentions = findings(nccl_warning, make.run(known, strange))
    assert (fails.status, fails.severity) == (Status.FAIL, Severity.CRITICAL)
    assert fails.evidence[0].rows[0][1:3] == (4, "0-3")
    assert mentions.status is Status.INFO
    said = "1 warning that dsprof does not know, such as “the moon is full”."
    assert mentions.summary == said


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            "two ranks use one",
        ),
        ("Cuda failure 700 'an illegal memory access was encountered'", "a device failed"),
        ("Cuda failure 'uncorrectable ECC error encountered'", "a device failed"),
        ("Cuda failure 'invalid device ordinal'", "a call of CUDA failed"),
        ("Cuda failure 2 'out of memory'", "could not get memory"),
        ("Message truncated : received 1024 bytes instead of 256", "messages of different sizes"),
    ],
)
def test_what_ends_a_communicator_is_a_problem(text, meaning):
    finding = one(nccl_warning, make.run(make.said(text, 1, level="WARN")))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert finding.severity is not Severity.LOW
    assert meaning in finding.problem


def test_the_last_error_that_torch_quotes_of_nccl_is_read():
    """Ranks write at once; without NCCL_DEBUG this is all that is said of the cause."""
    usage = "torch.distributed.DistBackendError: NCCL error in: x.cpp:3356, invalid usage (run"
    device = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000"
    quoted = [f"[rank1]: {usage}", "[rank1]: Last error:", "[rank0]: bye", f"[rank1]: {device}"]
    finding = one(nccl_warning, [*quoted, "[rank1]: Duplicate: all is well"])
    assert (finding.severity, finding.ranks) == (Severity.CRITICAL, (1,))
    assert finding.problem == "Rank 1 reports: two ranks use one device"
    assert [row[0] for row in finding.evidence[0].rows] == ["NCCL error: invalid usage", device]
    for rest in ([], ["[rank1]: "]):
        finding = one(nccl_warning, [*quoted[:3], *rest])
        assert finding.problem == "Rank 1 reports: NCCL refused a call"


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 "
         "clients joined.", "too few ranks joined the store in time"),
        ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
         "network address. port: 29500, code: -98, name: EADDRINUSE", "cannot be opened"),
        ("torch.distributed.DistNetworkError: The client socket has failed to connect to any "
         "network address of (node1, 29500).", "the host of the store cannot be reached"),
    ],
)  # fmt: skip
def test_ranks_that_do_not_find_each_other_are_a_problem(line, meaning):
    finding = one(nccl_warning, [f"[rank1]: {line}"])
    assert (finding.status, finding.severity, finding.ranks) == (Status.FAIL, Severity.HIGH, (1,))
    assert meaning in finding.problem


def test_an_error_of_nccl_that_says_nothing_more_is_a_problem():
    finding = one(nccl_warning, ["[rank1]: RuntimeError: NCCL error in: x.cpp:3, internal error -"])
    assert (finding.status, finding.problem) == (
        Status.FAIL,
        "Rank 1 reports: a call of NCCL failed",
    )


@pytest.mark.parametrize(
    ("text", "is_of_memory"),
    [
        ("Call to ibv_create_qp failed", True),  # of releases that name no error
        ("Call to ibv_reg_mr failed with error Cannot allocate memory", True),
        ("Call to ibv_reg_mr_iova2 failed with error Bad address", False),
        (
            "NET/OFI Unable to register memory (type = 1). RC: 12, Error: Cannot allocate memory",
            True,
        ),
        ("NET/OFI Unable to register memory (type = 2). RC: 22, Error: Invalid argument", False),
    ],
)
def test_the_limit_of_locked_memory_is_named_where_it_is_the_usual_cause(text, is_of_memory):
    actions = [
        one.action for one in findings(nccl_warning, make.run(make.said(text, level="WARN")))
    ]
    assert ("ulimit -l" in " ".join(actions)) is is_of_memory


def watchdog(rank, seq=8, op="ALLREDUCE", elements=9):
    return [
        f"[rank{rank}]: [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL("
        f"SeqNum={seq}, OpType={op}, NumelIn={elements}, NumelOut={elements}, "
        "Timeout(ms)=600000) ran for 600020 milliseconds before timing out.",
    ]


def ended_by(rank, what):
    said = ("Traceback (most recent call last):", '  File "train.py", line 3', what)
    return [f"[rank{rank}]: {line}" for line in said]


def test_a_rank_that_raised_is_why_others_timed_out():
    finding = one(collective_timeout, [*ended_by(1, "KeyError: 'x'"), *watchdog(0), *watchdog(2)])
    assert (finding.ranks, finding.confidence) == ((1,), "medium")
    assert finding.problem == "Rank 1 (KeyError) failed, and ranks 0, 2 timed out"
    assert finding.cause == "Rank 1 raised KeyError: 'x'. Others waited for rank 1."
    assert finding.action == "Find its traceback in the log."


def test_a_rank_out_of_memory_comes_before_those_that_waited_for_it():
    lines = [*ended_by(1, make.out_of_memory()), *watchdog(0)]
    timeout, memory = one(collective_timeout, lines), one(device_out_of_memory, lines)
    assert (timeout.ranks, timeout.severity) == ((1,), Severity.HIGH)
    assert timeout.cause == "Rank 1 ran out of device memory; others waited."
    assert memory.severity.order < timeout.severity.order


@pytest.mark.parametrize("rank", [0, 1])
def test_what_the_end_of_others_raises_is_no_cause_of_a_timeout(rank):
    lost = "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1."
    lines = [*ended_by(rank, "ValueError: x" if rank == 0 else lost), *watchdog(0)]
    finding = one(collective_timeout, make.run(lines))
    assert "raised" not in finding.cause
    assert "failed" not in finding.problem


def test_ranks_that_are_silent_are_suspects_and_no_more():
    finding = one(collective_timeout, [*watchdog(0), *watchdog(2), *watchdog(3)])
    assert (finding.ranks, finding.confidence) == ((1,), "low")
    assert "after 600 s" in finding.summary
    assert finding.evidence[0].rows[0] == (0, "all_reduce", 9, 8, None, None)
    unnumbered = one(collective_timeout, [*watchdog(0, elements=0), status(2, 3, 5)])
    assert unnumbered.evidence[0].rows == (
        (0, "all_reduce", 0, 8, None, None),
        (2, None, None, 5, 4, 6),
    )


def asked(rank, enqueued, completed, group=0):
    return (
        f"[rank{rank}]:[E901 05:20:03.1 ProcessGroupNCCL.cpp:1746] [PG ID {group} PG GUID {group}"
        f"(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from  rank "
        f"0 and we will try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, "
        f"last completed NCCL work: {completed}.This is most likely caused by incorrect usages"
    )


def test_a_rank_that_was_asked_for_a_dump_tells_whether_it_came():
    told = [status(0, 0, 8), asked(1, 8, 7), asked(2, 7, 7), status(3, 0, 8)]
    finding = one(collective_timeout, told)
    assert (finding.ranks, finding.confidence) == ((2,), "medium")
    assert finding.summary == "Ranks 0, 3 timed out in collective number 8."
    assert finding.cause == ("Rank 2 had not issued collective number 8; the others wait in it.")
    every = one(collective_timeout, [*told[:2], asked(2, 9, 7), told[3]])
    assert (every.ranks, "A rank is stuck on its device" in every.cause) == ((), True)
    other = one(collective_timeout, [*told[:2], asked(2, 7, 7, group=5), told[3]])
    assert "No report from rank 2" in other.cause


def test_a_timeout_of_a_rank_whose_log_is_missing():
    finding = one(collective_timeout, [asked(1, 8, 7)])
    assert (finding.status, finding.ranks) == (Status.FAIL, ())
    assert "whose log was not given" in finding.summary


@pytest.mark.parametrize("silent", [1, 3])
def test_any_rank_of_the_job_may_be_the_silent_one(silent):
    told = [line for rank in range(4) if rank != silent for line in watchdog(rank)]
    finding = one(collective_timeout, make.run(told))
    assert finding.ranks == (silent,)
    assert finding.cause.endswith(f"rank {silent}: stuck, ended or not in the group.")
    in_default = [status(rank, 0, 8) for rank in range(4) if rank != silent]
    assert one(collective_timeout, make.run(told, in_default)).cause.endswith("stuck or ended.")


def test_gloo_names_the_ranks_that_did_not_come_to_a_monitored_barrier():
    said = "[rank0]: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 8000 ms"
    finding = one(collective_timeout, [said])
    assert (finding.ranks, finding.confidence) == ((1, 3), "medium")
    assert finding.summary == "Rank 0 timed out in a barrier after 8.00 s."
    assert finding.cause == "Ranks 1, 3 did not come, by the message of gloo."
    assert "NCCL" not in finding.action


def test_most_of_a_job_is_no_suspect():
    finding = one(collective_timeout, make.run(watchdog(0)))
    assert finding.ranks == ()
    assert "No report from ranks 1-3" in finding.cause


def test_where_all_have_reported_no_rank_is_missing():
    told = [line for rank in range(4) for line in watchdog(rank)]
    assert "missing" not in one(collective_timeout, make.run(told)).cause
    assert one(collective_timeout, told).cause.endswith("or a higher rank is missing.")


def test_who_is_in_a_smaller_group_is_not_known():
    told = [status(rank, 3, 8) for rank in range(3)]
    assert one(collective_timeout, make.run(told)).cause.endswith(
        "No report from rank 3: stuck, ended or not in the group."
    )


def test_traces_beside_the_logs_name_who_did_not_come():
    lines = [*watchdog(0), *watchdog(1), *watchdog(3)]
    traces = without(2, **KEPT)
    for of_log in make.read(lines):
        traces[of_log.rank].log = of_log.log
    (finding,) = judged(collective_timeout.RULE, *traces)
    assert (finding.ranks, finding.confidence) == ((2,), "high")
    assert finding.cause.startswith("Rank 2 never entered all_reduce 4 of group world")
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in finding.action


def test_several_silent_ranks_have_logs_and_stacks_of_their_own():
    several = one(collective_timeout, [*watchdog(0), *watchdog(3)])
    assert several.cause.endswith(
        "ranks 1-2: stuck, ended, not in the group or their logs are not given."
    )
    assert several.action.startswith("Read the ends of the logs and the stacks of ranks 1-2")
    single = one(collective_timeout, [*watchdog(0), *watchdog(2)])
    assert single.cause.endswith("rank 1: stuck, ended, not in the group or its log is not given.")
    assert "the end of the log and the stack of rank 1 (" in single.action
    assert single.evidence[0].caption.endswith("ranks 0, 2 wrote")


def test_ranks_that_wait_in_an_earlier_collective():
    finding = one(collective_timeout, [*watchdog(0), *watchdog(1, seq=5)])
    assert finding.ranks == (1,)
    assert "the ranks issue different collectives" in finding.cause


def test_ranks_in_different_broadcasts_prove_no_mismatch():
    numbers = (56, 5, 48, 5)
    told = [line for rank in range(4) for line in watchdog(rank, numbers[rank], "BROADCAST")]
    finding = one(collective_timeout, told)
    assert finding.summary == "Ranks 0-3 timed out in broadcasts number 5 to 56 after 600 s."
    assert (finding.ranks, finding.confidence) == ((1, 3), "low")
    assert "different collectives" not in finding.cause
    assert finding.cause.startswith(
        "Ranks 1, 3 wait in collective number 5, the others in later ones. Some ranks leave a "
        "broadcast before others complete it"
    )


def test_a_timeout_in_a_line_of_no_rank_accuses_none():
    (line,) = watchdog(0)
    finding = one(collective_timeout, make.run(line.removeprefix("[rank0]: [Rank 0] ")))
    assert finding.summary == "A rank timed out in all_reduce number 8 after 600 s."
    assert (finding.ranks, finding.confidence) == ((), "")
    assert finding.cause == "The logs do not say which rank did not join."
    assert finding.evidence[0].rows[0][0] is None


def test_the_status_that_earlier_releases_print():
    lines = [
        "[rank1]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 1] Timeout at NCCL work: 5, last "
        "enqueued NCCL work: 6, last completed NCCL work: 4.",
        *watchdog(1, 5),
    ]
    finding = one(collective_timeout, lines)
    assert finding.evidence[0].rows == ((1, "all_reduce", 9, 5, 4, 6),)


def status(rank, group, at):
    return (
        f"[rank{rank}]:[E1] [PG ID 1 PG GUID {group}(undefined) Rank 0] failure detected by "
        f"watchdog at work sequence id: {at} PG status: last enqueued work: {at + 1}, last "
        f"completed work: {at - 1}"
    )


def test_numbers_of_several_groups_are_not_compared():
    finding = one(collective_timeout, [status(0, 3, 5), status(1, 3, 5), status(2, 4, 8)])
    assert finding.ranks == ()
    assert finding.evidence[0].rows[0][3:] == (5, 4, 6)
    finding = one(collective_timeout, [status(0, 3, 5), status(1, 3, 8)])
    assert finding.ranks == (0,)


def test_ranks_that_wait_in_different_collectives():
    finding = one(collective_timeout, [*watchdog(0), *watchdog(1, op="BROADCAST")])
    assert "different collectives" in finding.cause
    assert finding.ranks == ()


def memory(**fields):
    return findings(device_out_of_memory, ["[rank0]: " + make.out_of_memory(**fields)])


def test_the_four_reasons_for_no_memory():
    (needy,) = memory()
    assert "more memory than the device has" in needy.title
    assert needy.evidence[0].rows == (
        (0, 0, 1 << 30, 80 << 30, 100 << 20, 78 << 30, 200 << 20, 924 << 20),
    )
    (fragments,) = memory(unallocated="1.00 GiB", allocated="77.00 GiB")
    assert "expandable_segments:True" in fragments.action
    (crowded,) = memory(others="Process 77 has 30.00 GiB memory in use. ", process="49.00 GiB")
    assert "Process 77 takes 30.0 GiB of 80.0 GiB" in crowded.summary
    limited = make.out_of_memory().replace("Of the all", "40.00 GiB allowed; Of the all")
    assert "limit" in one(device_out_of_memory, [limited]).title


def test_a_neighbour_that_is_not_in_the_way_is_not_blamed():
    (finding,) = memory(others="Process 77 has 200.00 MiB memory in use. ")
    assert "more memory than the device has" in finding.title


@pytest.mark.parametrize(("asked", "is_blamed"), [("6.00 GiB", True), ("6.01 GiB", False)])
def test_a_neighbour_is_blamed_where_the_request_fits_without_it(asked, is_blamed):
    theirs = "Process 77 has 5.00 GiB memory in use. "
    (finding,) = memory(asked=asked, free="1.00 GiB", others=theirs, process="74.00 GiB")
    assert ("Process 77 takes" in finding.summary) is is_blamed


def test_expandable_segments_are_not_advised_where_they_are_on():
    lines = ["+ PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", make.out_of_memory(
        unallocated="1.50 GiB", allocated="77.00 GiB")]  # fmt: skip
    assert one(device_out_of_memory, lines).action.startswith("expandable_segments is already on")


def test_the_output_of_comms_logger_proves_that_it_ran():
    info = "[INFO] [Rank 0] DeepSpeed info: version=0.19.8, git-hash=unknown"
    finding = one(comms_logger_enabled, [info, make.call("all_reduce", 2)])
    assert finding.status is Status.FAIL
    assert "logs sums of all times so far" in finding.summary
    assert len(finding.evidence[0].rows) == 8
    finding = one(comms_logger_enabled, [make.call("all_reduce", 2)])
    assert len(finding.evidence[0].rows) == 7


def test_variables_that_nccl_logs_are_judged_as_far_as_they_go():
    lines = make.run(
        make.every("NCCL_ALGO set by environment to Ring", 3),
        make.said("NCCL_ALGO set by environment to Tree", rank=3),
        make.every("NCCL_CHECK_POINTERS set by environment to 1."),
    )
    finding = one(variable_differs_across_ranks, lines)
    assert (finding.severity, finding.ranks) == (Severity.CRITICAL, (3,))
    assert "NCCL_CHECK_POINTERS" in one(sync_debug_variable, lines).summary
    # After parsing, "true" and "0" look alike.
    assert one(unparsable_integer_variable, lines).status is Status.UNKNOWN
    some = make.run(make.said("NCCL_ALGO set by environment to Ring"), make.every(IB))
    for module in (variable_differs_across_ranks, sync_debug_variable):
        assert one(module, some).status in (Status.UNKNOWN, Status.NOT_APPLICABLE)


def test_a_long_warning_does_not_cut_the_headline():
    text = "socketProgress: Connection closed by remote peer v100x16-2.some.example.com<46776>"
    finding = one(nccl_warning, make.run(make.said(text, 1, level="WARN")))
    assert finding.problem == "Rank 1 reports: a connection to another rank broke"


def test_what_launchers_report_is_no_log_of_nccl():
    lines = ["  rank      : 0 (local_rank: 0)", "srun: error: n1: task 0: Exited with exit code 1"]
    for module in (transport_fallback, nccl_warning):
        assert one(module, lines).status is Status.NOT_APPLICABLE


def test_a_watchdog_that_is_stuck_itself():
    line = (
        "[rank1]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 1] [PG 0 Rank 1] ProcessGroupNCCL's "
        "watchdog got stuck for 600 seconds without making progress in monitoring enqueued "
        "collectives. This typically indicates a NCCL/CUDA API hang blocking the watchdog"
    )
    finding = one(nccl_warning, [line])
    assert (finding.status, finding.severity, finding.ranks) == (Status.FAIL, Severity.HIGH, (1,))
    assert finding.problem == "Rank 1 reports: a call of CUDA or NCCL does not return"
    both = one(nccl_warning, [line, line.replace("[rank1]", "[rank2]")])
    assert both.problem == "Ranks 1-2 report: a call of CUDA or NCCL does not return"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Heartbeat monitor timed out! "
            "Process will be terminated after dumping debug info. workMetaList_.size()=1",
            "Rank 1 reports: a call of CUDA or NCCL does not return",
        ),
        (
            "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
            "A rank reports: too few nodes joined the rendezvous in time",
        ),
        (
            "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to "
            "connect to (10.0.0.1, 29500).",
            "A rank reports: the host of the rendezvous did not answer",
        ),
    ],
    ids=["heartbeat", "rendezvous", "socket"],
)
def test_what_torch_says_before_it_gives_up_is_read(line: str, problem: str) -> None:
    assert one(nccl_warning, [line]).problem == problem


@pytest.mark.parametrize("what", ["send a keep-alive heartbeat to", "shutdown"])
def test_an_agent_that_ends_after_the_one_with_the_store_is_no_problem(what: str) -> None:
    line = (
        f"W0417 13:22:17 dynamic_rendezvous.py:1331] The node 'node1_65_0' has failed to {what} "
        "the rendezvous '1468' due to an error of type RendezvousTimeoutError."
    )
    (trace,) = make.read([line, make.ready(0, 1)])
    assert trace.log is not None
    assert not trace.log.warnings
