"""Which rank failed and how, by what launchers, schedulers and watchdogs write."""

from __future__ import annotations

import pytest

from dsprof.trace.rank_log import (
    FAILED,
    FAILED_FIRST,
    FROM_OUTSIDE,
    HOST_MEMORY,
    LAUNCHER,
    OF_RAY,
    RAY_MEMORY,
    CollectiveTimeout,
    LastWork,
    LogMark,
)
from dsprof.trace.readers.logs import LogReader
from tests.factories import logs as make


def test_a_failure_in_a_line_of_no_rank_is_of_no_rank():
    told = [f"[rank{rank}]: {make.out_of_memory(asked='2.00 GiB')}" for rank in (1, 2)]
    (first, _) = make.read([*told, make.out_of_memory()])
    strays = [one.asked_bytes for one in first.log.out_of_memory if first.log.is_stray(one)]
    assert strays == [1 << 30]
    (first, _) = make.read([*told, make.out_of_memory(asked="2.00 GiB")])  # printed again
    assert not any(map(first.log.is_stray, first.log.out_of_memory))


@pytest.mark.parametrize("name", ["rank3.log", "train.log"])
def test_a_failure_is_of_the_rank_or_the_process_of_its_file(name):
    lines = [make.out_of_memory()] if name == "rank3.log" else [make.ready(3), make.out_of_memory()]
    (trace,) = make.read(lines, name)
    assert (trace.rank, trace.log.strays) == (3, frozenset())


def test_the_rank_in_torchruns_list_of_failures():
    lines = []
    for rank in (0, 5):
        lines += [f"[{rank}]:", f"  rank      : {rank} (local_rank: 0)", make.out_of_memory()]
    traces = make.read(lines)
    assert [trace.rank for trace in traces] == [0, 5]
    assert all(len(trace.log.out_of_memory) == 1 for trace in traces)


def test_the_watchdog_of_a_rank():
    lines = [
        "[rank1]:[E626 06:24:44.9 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=808, OpType=_ALLGATHER_BASE, NumelIn=98, NumelOut=98, "
        "Timeout(ms)=600000) ran for 600020 milliseconds before timing out.",
        "[E626 06:24:44.9 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] "
        "Exception (either an error or timeout) detected by watchdog at work: 808, last enqueued "
        "NCCL work: 811, last completed NCCL work: 807.",
    ]
    (trace,) = make.read(lines)
    assert trace.rank == 1
    assert trace.log.timeouts == [CollectiveTimeout("all_gather", 808, 98, 600020)]
    assert trace.log.last_works == [LastWork("0", 808, 811, 807)]


def test_a_line_of_the_watchdog_that_lost_its_rank_names_none():
    """Terminals and pastes break lines."""
    (trace,) = make.read(["by watchdog at work: 8, last enqueued NCCL work: 9, last completed NCCL "
                          "work: 7."])  # fmt: skip
    (stray,) = trace.log.timeouts
    assert (stray.seq, trace.log.is_stray(stray), trace.log.last_works) == (8, True, [])


def test_the_watchdog_of_later_releases():
    lines = [
        "[rank3]:[E1 ProcessGroupNCCL.cpp:689] [Rank 3] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=5, OpType=COALESCED, NumelIn=18446744073709551615, "
        "NumelOut=18446744073709551615, Timeout(ms)=600000) ran for 600007 milliseconds before",
        "[rank3]:[E1 ProcessGroupNCCL.cpp:2241] [PG ID 2 PG GUID 7(undefined) Rank 1] failure "
        "detected by watchdog at work sequence id: 5 PG status: last enqueued work: 6, last "
        "completed work: 4",
    ]
    (trace,) = make.read(lines)
    assert trace.log.timeouts == [CollectiveTimeout("coalesced", 5, -1, 600007)]
    assert trace.log.last_works == [LastWork("7", 5, 6, 4)]
    (alone,) = make.read(lines[1:])
    assert alone.log.last_works == trace.log.last_works


@pytest.mark.parametrize(
    "line",
    [
        "[Rank 1048579] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, "
        "OpType=SEND, NumelIn=98, Timeout(ms)=6000) ran for 6020 milliseconds before timing out.",
        "  rank      : 1048579 (local_rank: 0)",
        "mpirun noticed that process rank 1048579 with PID 7 on node n1 exited on signal 9 (x).",
    ],
)
def test_a_number_too_large_for_a_rank_names_none(line):
    [trace] = make.read([f"[rank2]: {make.out_of_memory()}", line])
    assert trace.rank == 2
    assert trace.log.values(FAILED_FIRST) == trace.log.values(FAILED) == {}


@pytest.mark.parametrize(("who", "absent"), [("Rank 1", (1,)), ("Ranks 1, 3", (1, 3))])
def test_the_ranks_that_did_not_come_to_a_monitored_barrier(who, absent):
    said = f"{who} failed to pass monitoredBarrier in 12000 ms"
    (trace,) = make.read([f"[rank0]:[E1129 ProcessGroupGloo.cpp:67] [Rank 0]: {said}"])
    assert trace.rank == 0
    assert trace.log.timeouts == [CollectiveTimeout("barrier", waited_ms=12_000, absent=absent)]


def test_warnings_and_errors_are_where_they_are_in_the_unpacked_log():
    lines = [
        *make.run(),
        make.said("No device found", 2, level="WARN"),
        "[rank1]: " + make.out_of_memory(),
        "[rank3]: RuntimeError: NCCL error in: ../x.cpp:3, remote process exited, NCCL version 2",
    ]
    begun = [sum(len(line) + 1 for line in lines[:n]) for n in range(len(lines) + 1)]
    found = {trace.rank: trace.log for trace in make.read(lines)}
    marks = {rank: [*log.marks] for rank, log in found.items() if log}
    assert marks == {
        0: [],
        1: [LogMark(begun[-3], is_error=True, text="device out of memory")],
        2: [LogMark(begun[-4], is_error=False, text="No device found")],
        3: [LogMark(begun[-2], is_error=True, text="NCCL error: remote process exited")],
    }
    assert {log.nbytes for log in found.values() if log} == {begun[-1]}


def test_the_list_of_torchrun_is_not_in_the_order_in_which_ranks_failed():
    lines = ["  rank      : 3 (local_rank: 3)", make.out_of_memory()]
    (log,) = (trace.log for trace in make.read(lines))
    assert log is not None
    assert log.out_of_memory
    assert log.marks == []


@pytest.mark.parametrize("started", ["last started work: -1", "last started work: 9 (_ALL)"])
def test_torch_2_13_tells_what_started_last(started):
    said = (
        "[PG ID 0 PG GUID 0(default_pg) Rank 1] failure detected by watchdog at work sequence id: "
        f"8 PG status: last enqueued work: 9, {started}, last completed work: 7"
    )
    (trace,) = make.read(["[rank1]:[E1] " + said])
    assert trace.log.last_works == [LastWork("0", 8, 9, 7)]


AGENT = "ERROR:torch.distributed.elastic."
PROCESS = "local_rank: 0 (pid: 31) of binary: /usr/bin/python"
CALLED = "subprocess.CalledProcessError: Command '["
KILLED = "signal SIGKILL"


def failures(rank, code, label=""):
    """The list that an agent of torchrun writes where one rank failed first, and another then."""
    return [
        label + line
        for line in (
            "Failures:",
            "[1]:",
            f"  rank      : {rank + 1} (local_rank: 1)",
            "  exitcode  : -15 (pid: 12)",
            "Root Cause (first observed failure):",
            "[0]:",
            f"  rank      : {rank} (local_rank: 0)",
            f"  exitcode  : {code} (pid: 11)",
        )
    ]


@pytest.mark.parametrize(
    ("code", "how"), [(1, "exit code 1"), (-7, "signal SIGBUS"), (-99, "signal 99")]
)
def test_torchrun_tells_which_rank_failed_first_and_how(code, how):
    first, other = (trace.log for trace in make.read(failures(4, code)))
    assert (first.values(FAILED), other.values(FAILED)) == ({"failed": 1}, {"failed": 1})
    assert (first.values(FAILED_FIRST), other.values(FAILED_FIRST)) == ({how: 1}, {})


def test_lists_of_two_agents_may_run_into_each_other():
    pairs = zip(failures(0, 1, "0: "), failures(8, 1, "1: "), strict=True)
    found = make.read(sum(pairs, ()))
    first = [trace.rank for trace in found if trace.log.values(FAILED_FIRST)]
    assert (first, [trace.rank for trace in found]) == ([0, 8], [0, 1, 8, 9])


@pytest.mark.parametrize(
    ("line", "how"),
    [
        (
            "[2022-11-22 05:19:27,742] [ERROR] [launch.py:324:sigkill_handler] ['python', '-u', "
            "'a.py', '--local_rank=3'] exits with return code = -11",
            "signal SIGSEGV",
        ),
        ("srun: error: n1: task 3: Exited with exit code 2", "exit code 2"),
        ("srun: error: n[1-2]: tasks 0-3,7: Out Of Memory", "out of memory"),
        ("srun: error: n1: task 3: Segmentation fault (core dumped)", "signal SIGSEGV"),
        ("srun: error: n1: tasks 0-1: Bus error", "signal SIGBUS"),
        ("srun: error: n1: task 3: Exited with exit code 143", ""),  # srun or scancel ended it
        ("srun: error: n1: task 3: Terminated", ""),
        ("[n1:1168] Signal: Bus error (7)", "signal SIGBUS"),
        ("[n1:3039 :0:3095] Caught signal 7 (Bus error: no address)", "signal SIGBUS"),
        (f"{AGENT}multiprocessing.api:failed (exitcode: -7) {PROCESS}", "signal SIGBUS"),
        (f"E0517 multiprocessing/api.py:826] failed (exitcode: 1) {PROCESS}", "exit code 1"),
        (f"{CALLED}'/a/bin/python', '-u', 'a.py']' died with <Signals.SIGKILL: 9>.", KILLED),
        (f"{CALLED}'python3.8', '-m', 'a']' returned non-zero exit status 2.", "exit code 2"),
        (f"{CALLED}'ninja', '-v']' returned non-zero exit status 1.", ""),
        (
            f"{CALLED}'python', '-m', 'torch.distributed.run', 'a.py']' returned non-zero exit "
            "status 1.",
            "",
        ),  # torchrun says more
        ("n1.cluster: rank 25 died from signal 11 and dumped core", "signal SIGSEGV"),
        ("n1.cluster: rank 26 died from signal 15", ""),  # mpiexec ended it
        ("=   EXIT CODE: 1", "exit code 1"),
        ("=   KILLED BY SIGNAL: 9 (Killed)", KILLED),
        ("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)", KILLED),
        (f"{CALLED}'python', '-m', 'pip', 'install']' returned non-zero exit status 1.", ""),
        (f"{CALLED}'python', '-c', 'import x']' returned non-zero exit status 1.", ""),
        ("run.sh: line 12:  4711 Killed                  python a.py", KILLED),
        ("run.sh: line 12:  4711 Killed                  $LAUNCHER a.py", KILLED),
        ("run.sh: line 14:  4242 Killed                  nvidia-smi dmon > gpu.log", ""),
        (
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
            OF_RAY,
        ),
        ("(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0", RAY_MEMORY),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0. Some of the step tasks "
            "have been OOM Killed.",
            HOST_MEMORY,
        ),
        ("0: slurmstepd-n1: error: Detected 2 oom-kill event(s) in step 4.b cgroup.", HOST_MEMORY),
    ],
)
def test_launchers_tell_how_a_process_failed(line, how):
    first, *others = make.read([line, "DeepSpeed info: version=0.16.0"])
    assert (first.log.values(LAUNCHER), others) == ({how: 1} if how else {}, [])
    assert bool(first.notes) is not bool(how)


def test_mpirun_tells_which_rank_failed_first():
    line = "mpirun noticed that process rank 2 with PID 7 on node n1 exited on signal 9 (Killed)."
    [trace] = make.read([line])
    assert (trace.rank, trace.log.values(FAILED_FIRST)) == (2, {"signal SIGKILL": 1})
    assert LogReader().recognises(line.encode())


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("*** JOB 4 ON n1 CANCELLED AT 2026-11-25T22:04:43 DUE TO TIME LIMIT ***", "time limit"),
        ("*** STEP 3.0 ON n1 CANCELLED AT 2026-11-25T22:03:18 ***", "cancelled"),
        ("*** JOB 8 ON n1 CANCELLED AT 2026-11-25T22:05:21 DUE TO JOB REQUEUE ***", "job requeue"),
        ("*** JOB 9 ON n1 CANCELLED AT 2026-11-25T22:05 DUE to SIGNAL Terminated ***", "cancelled"),
        ("*** JOB 9 ON n1 CANCELLED AT 2026-11-25T22:05:21 DUE TO PREEMPTION ***", "preemption"),
        (
            "*** JOB 9 ON n1 CANCELLED AT 2026-11-25T22:05:21 DUE TO NODE FAILURE, SEE SLURMCTLD "
            "LOG FOR DETAILS ***",
            "node failure",
        ),
    ],
)
def test_slurm_says_why_it_ended_a_job(line, cause):
    (trace,) = make.read([f"slurmstepd-n1: error: {line}"])
    (daemon,) = make.read([f"[2026-11-25T22:05:21.003] error: {line}"])
    assert daemon.log.values(FROM_OUTSIDE) == {cause: 1}
    assert trace.log.values(FROM_OUTSIDE) == {cause: 1}
    assert trace.notes == []


@pytest.mark.parametrize(("number", "name"), [(15, "SIGTERM"), (1, "SIGHUP")])
def test_torchrun_says_which_signal_it_got(number, name):
    said = f"Received {number} death signal, shutting down workers"
    for line in (
        f"W0409 07:28:49.530000 1359 torch/distributed/elastic/agent/server/api.py:719] {said}",
        f"58%|##| 4/9 [1:02]WARNING:torch.distributed.elastic.agent.server.api:{said}",
        f"torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: "
        f"{number}",
    ):
        (trace,) = make.read([line])
        assert trace.log.values(FROM_OUTSIDE) == {name: 1}
        assert LogReader().recognises(line.encode())
