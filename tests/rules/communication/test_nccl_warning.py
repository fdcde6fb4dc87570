"""Warnings of NCCL and torch in logs, and what they mean."""

from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.nccl_warning import NcclWarning
from tests.factories import logs as make
from tests.rules.judged_logs import findings, one


def test_warnings_with_and_without_advice():
    known = make.every("Bootstrap : no socket interface found", level="WARN")
    strange = make.said("the moon is full", level="WARN")
    fails, mentions = findings(NcclWarning(), make.run(known, strange))
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
        ("Cuda failure 'uncorrectable ECC error encountered'", "a device has damaged memory"),
        ("Connect to 10.0.0.2<21724> failed : Connection refused", "could not be reached"),
        ("socketStartConnect: Connect to 10.0.0.2<4> failed : No route", "could not be reached"),
        ("Call to connect returned Connection timed out", "could not be reached"),
        ("socketProgress: Connection closed by remote peer n1<5>", "a connection to another rank"),
        ("Cuda failure 'invalid argument'", "a CUDA call failed"),
        ("Cuda failure 'invalid device ordinal'", "a device that its host does not have"),
        ("Cuda failure 802 'system not yet initialized'", "NVSwitch fabric is not initialised"),
        ("Cuda failure 217 'peer access is not supported'", "cannot access each other"),
        ("Failed to CUDA malloc 4096 bytes", "could not get memory on the device"),
        ("Failed to malloc 4096 bytes", "could not get memory of the host"),
        ("NET/IB : Got async event : port error", "lost its link"),
        ("NET/IB : mlx5_0:1 async fatal event on QP (0x7f) qpn=1: local work", "adapter of Infini"),
        ("NET/IB: Got completion from peer a<1> with status=12 opcode=1", "lost the connection"),
        ("NET/IB : Got completion with error 5, opcode 0, vendor err 249", "had failed before"),
        (
            "NET/IB: Got completion from peer a<1> with status=IBV_X(4)",
            "a transfer over InfiniBand",
        ),
        ("NET/IB : No IP interface found.", "no usable network interface"),
        ("No transport found for rank 1[10] -> rank 0[20]", "no way to communicate"),
        ("NET/IB : Remote IB device is incompatible with the local [0]a", "links of different"),
        (
            "Detected mixed local Net device counts across ranks (min 1, max 2).",
            "different numbers",
        ),
        (
            "Error while attaching to shared memory segment /dev/shm/nccl-a (size 9)",
            "shared memory",
        ),
        ("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2 : CUDA", "NVLink SHARP"),
        ("MNNVL (cliqueSize 4) is available but not working on this system.", "IMEX"),
        ("nvmlInit() failed: Driver/library version mismatch", "management library"),
        ("CUDA Driver version found is 11020. Minimum requirement is 11030", "too old"),
        ("Your program may be hanging, this may be caused by a collective mismatch", "different"),
        ("Trying to recv to self without a matching send", "has no counterpart"),
        ("Cuda failure 2 'out of memory'", "could not get memory"),
        ("Message truncated : received 1024 bytes instead of 256", "messages of different sizes"),
        ("NET/Socket : peer a<1> message truncated : receiving 8 bytes", "messages of different"),
    ],
)
def test_what_ends_a_communicator_is_a_problem(text, meaning):
    finding = one(NcclWarning(), make.run(make.said(text, 1, level="WARN")))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert finding.severity is not Severity.LOW
    assert meaning in finding.problem


def test_the_last_error_that_torch_quotes_of_nccl_is_read():
    """Ranks write at once; without NCCL_DEBUG this is all that is said of the cause."""
    usage = "torch.distributed.DistBackendError: NCCL error in: x.cpp:3356, invalid usage (run"
    device = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000"
    quoted = [f"[rank1]: {usage}", "[rank1]: Last error:", "[rank0]: bye", f"[rank1]: {device}"]
    finding = one(NcclWarning(), [*quoted, "[rank1]: Duplicate: all is well"])
    assert (finding.severity, finding.ranks) == (Severity.CRITICAL, (1,))
    assert finding.problem == "Rank 1 reports: two ranks use one device"
    assert [row[0] for row in finding.evidence[0].rows] == ["NCCL error: invalid usage", device]
    for rest in ([], ["[rank1]: "]):
        finding = one(NcclWarning(), [*quoted[:3], *rest])
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
    finding = one(NcclWarning(), [f"[rank1]: {line}"])
    assert (finding.status, finding.severity, finding.ranks) == (Status.FAIL, Severity.HIGH, (1,))
    assert meaning in finding.problem
    assert finding.title == "torch reports an error"


def test_what_could_not_be_reached_says_more_than_that_a_process_may_have_ended():
    lost = "torch.distributed.DistBackendError: NCCL error in: x.cpp:2, remote process exited or"
    reached = "socketPollConnect: connect to 10.0.0.2<43> returned Connection timed out(110)"
    lines = [f"[rank0]: {one}" for one in (lost, "Last error:", reached)]
    finding = one(NcclWarning(), lines)
    assert finding.problem == "Rank 0 reports: another rank could not be reached"
    assert finding.action.startswith("Set NCCL_SOCKET_IFNAME to")


def test_an_error_of_nccl_that_says_nothing_more_is_a_problem():
    finding = one(
        NcclWarning(), ["[rank1]: RuntimeError: NCCL error in: x.cpp:3, internal error -"]
    )
    assert (finding.status, finding.problem) == (
        Status.FAIL,
        "Rank 1 reports: an NCCL call failed",
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
        one.action for one in findings(NcclWarning(), make.run(make.said(text, level="WARN")))
    ]
    assert ("ulimit -l" in " ".join(actions)) is is_of_memory


def test_a_long_warning_does_not_cut_the_headline():
    text = "socketProgress: Connection closed by remote peer v100x16-2.some.example.com<46776>"
    finding = one(NcclWarning(), make.run(make.said(text, 1, level="WARN")))
    assert finding.problem == "Rank 1 reports: a connection to another rank broke"


def test_a_watchdog_that_is_stuck_itself():
    line = (
        "[rank1]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 1] [PG 0 Rank 1] ProcessGroupNCCL's "
        "watchdog got stuck for 600 seconds without making progress in monitoring enqueued "
        "collectives. This typically indicates a NCCL/CUDA API hang blocking the watchdog"
    )
    finding = one(NcclWarning(), [line])
    assert (finding.status, finding.severity, finding.ranks) == (Status.FAIL, Severity.HIGH, (1,))
    assert finding.problem == "Rank 1 reports: a CUDA or NCCL call does not return"
    both = one(NcclWarning(), [line, line.replace("[rank1]", "[rank2]")])
    assert both.problem == "Ranks 1-2 report: a CUDA or NCCL call does not return"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Heartbeat monitor timed out! "
            "Process will be terminated after dumping debug info. workMetaList_.size()=1",
            "Rank 1 reports: a CUDA or NCCL call does not return",
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
    assert one(NcclWarning(), [line]).problem == problem


@pytest.mark.parametrize("what", ["send a keep-alive heartbeat to", "shutdown"])
def test_an_agent_that_ends_after_the_one_with_the_store_is_no_problem(what: str) -> None:
    line = (
        f"W0417 13:22:17 dynamic_rendezvous.py:1331] The node 'node1_65_0' has failed to {what} "
        "the rendezvous '1468' due to an error of type RendezvousTimeoutError."
    )
    (trace,) = make.read([line, make.ready(0, 1)])
    assert trace.log is not None
    assert not trace.log.warnings


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "RuntimeError: NCCL Error 1: unhandled cuda error",  # of torch's own calls of NCCL
            "A rank reports: a CUDA call failed",
        ),
        (
            " 33%|#  | 3/9Memory access fault by GPU node-3 (Agent handle: 0x5a) on address 0x7.",
            "A rank reports: a device failed",
        ),
        (
            "n1: Test CUDA failure common.cu:941 'system not yet initialized'",
            "A rank reports: the NVSwitch fabric is not initialised",
        ),
        (
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, "
            "for key: store_based_barrier_key:1 (world_size=8, worker_count=4, timeout=0:30:00)",
            "A rank reports: too few ranks joined the store in time",
        ),
        (
            "[rank3]: torch.distributed.DistBackendError: [3] is setting up NCCL communicator and "
            "retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->"
            "get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
            "Rank 3 reports: a rank did not join a group's first collective",
        ),
        (
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to",
            "A rank reports: the store of the rendezvous cannot be reached",
        ),
    ],
)
def test_errors_without_a_prefix_of_nccl_are_a_problem(line, problem):
    assert one(NcclWarning(), [line]).problem == problem


def test_a_store_that_ended_first_is_no_problem_of_its_own():
    lost = "[rank6]:[W729 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=76): Conn"
    finding = one(NcclWarning(), [lost])
    assert (finding.status, finding.ranks) == (Status.INFO, (6,))
    assert "the process with the store (usually rank 0) ended earlier" in finding.summary
    failed = one(NcclWarning(), [lost, "[rank2]: NCCL error in: a.cpp:7, remote process exited or"])
    assert failed.problem.startswith("Rank 2 reports: another rank ended")


def test_the_line_that_names_the_cause_of_an_unhandled_error_is_first():
    cause = "Cuda failure 802 'system not yet initialized'"
    said = ["NCCL error in: a.cpp:7, unhandled cuda error (run with", "Last error:", cause]
    finding = one(NcclWarning(), [f"[rank2]: {line}" for line in said])
    assert finding.problem == "Rank 2 reports: the NVSwitch fabric is not initialised"
