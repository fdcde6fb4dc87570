"""A log of several starts, and logs of several jobs: one is read."""

from __future__ import annotations

import pytest

from dsprof.environment.launchers import job_keys
from dsprof.trace.rank_log import EXCEPTION, LAUNCHER
from dsprof.trace.run import find_run
from tests.factories import logs as make
from tests.factories.trace import header
from tests.factories.trace_files import write_trace


def again(lines):
    """The same lines of processes that were started later."""
    return [line.replace(":100", ":200") for line in lines]


def test_only_the_last_start_in_a_log_is_read():
    network = make.every("NET/Socket : Using [0]eth0:10.0.0.1<0>", 4)
    first = make.run(network, "[rank1]: " + make.out_of_memory(), ranks=4)
    other = make.every("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>", 2)
    traces = make.read([*first, *again(make.run(other, ranks=2))])
    assert [(trace.rank, trace.header.world_size) for trace in traces] == [(0, 2), (1, 2)]
    assert [trace.log.out_of_memory for trace in traces] == [[], []]
    ((starts,), others) = (trace.log.starts for trace in traces)
    assert (starts.count, starts.errors) == (2, ("device out of memory (rank 1)",))
    assert others == []


def test_a_world_that_grew_begins_with_its_first_line():
    first, second = make.run(make.every("NET/Socket : Using [0]eth0", 2), ranks=2), []
    for rank in (3, 2, 1, 0):  # those on new devices are ready first
        second += make.every("NET/Socket : Using [0]eth1", 4)[rank : rank + 1]
    second += [make.ready(rank) for rank in (3, 2, 1, 0)]
    traces = make.read([*first, *again(second)])
    assert [trace.rank for trace in traces] == [0, 1, 2, 3]
    assert {*(one for t in traces for one in t.log.values("network devices for TCP"))} == {"eth1"}


def test_further_communicators_are_no_start():
    whole = make.run(ranks=2)
    traces = make.read([*whole, *whole])
    assert [trace.log.starts for trace in traces] == [[], []]


AGENT = "E0517 api.py:826] failed (exitcode: 1) local_rank: 1 (pid: 3) of binary: python"
ATTEMPT = ["[rank1]: Traceback (most recent call last):", "[rank1]: ValueError: bad batch", AGENT]
LOSSES = [f"step {number} loss 1.0" for number in range(400)]


def test_a_log_that_goes_on_after_a_failure_is_of_ranks_that_torchrun_started_again():
    (trace,) = make.read([*ATTEMPT, *LOSSES, *ATTEMPT, AGENT, *LOSSES])
    assert (trace.log.values(LAUNCHER), trace.log.values(EXCEPTION)) == ({}, {})
    (starts,) = trace.log.starts
    assert (starts.count, starts.errors) == (3, ())
    assert starts.last_at_bytes == len("\n".join([*ATTEMPT, *LOSSES, *ATTEMPT, AGENT, ""]))


RESTARTS = "I0517 api.py:9] Worker group FAILED. 1/3 attempts left; will restart worker group"


@pytest.mark.parametrize(
    "end",
    [
        LOSSES[:40],
        [RESTARTS],
        [RESTARTS, "Traceback (most recent call last):"],
    ],
)
def test_a_restart_is_seen_although_little_follows_it(end):
    (trace,) = make.read([*ATTEMPT, *end])
    assert [one.count for one in trace.log.starts] == [2]


@pytest.mark.parametrize(
    "end",
    [
        [],
        ["$ echo failed"] * 30,
        ["Traceback (most recent call last):", *LOSSES[:40]],
        ["[0]:", "  rank      : 1 (local_rank: 1)", *LOSSES],
        ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", *LOSSES],
        ["srun: error: n1: task 3: Exited with exit code 1"] * 100,
    ],
)
def test_a_failure_that_ends_the_log_or_is_listed_is_no_restart(end):
    for trace in make.read([*LOSSES, *ATTEMPT, *end]):
        assert trace.log.starts == []
        assert trace.log.values(EXCEPTION) == ({"ValueError: bad batch": 1} if trace.rank else {})


LAUNCH = "[2022-11-22 05:19:14,317] [INFO] [runner.py:508:main] cmd = python -u -m deepspeed.l"


def test_each_launch_of_deepspeed_is_a_start():
    failed = "[ERROR] [launch.py:324:sigkill_handler] [] exits with return code = 1"
    told = [LAUNCH, "[rank0]: " + make.out_of_memory(), failed]
    (trace,) = make.read([*told, LAUNCH, "DeepSpeed info: version=0.16.0"])
    assert trace.log.out_of_memory == []
    assert trace.log.values(LAUNCHER) == {}
    (starts,) = trace.log.starts
    assert (starts.count, starts.errors) == (2, ("device out of memory (rank 0)",))
    (alone,) = make.read([*told, LAUNCH])  # nothing was written since
    assert (alone.log.out_of_memory, len(alone.log.starts)) == ([], 1)


def test_launchers_of_several_nodes_start_a_job_once():
    launches = [f"{LAUNCH}auncher.launch --node_rank={node} train.py" for node in range(2)]
    lines = [launches[0], "[rank0]: " + make.out_of_memory(), launches[1]]
    (trace,) = make.read(lines)
    assert (trace.log.starts, len(trace.log.out_of_memory)) == ([], 1)
    (trace,) = make.read([*lines, launches[1], "DeepSpeed info: version=0.16.0", launches[0]])
    assert ([one.count for one in trace.log.starts], trace.log.out_of_memory) == ([2], [])


def test_processes_of_a_later_launch_are_no_further_start():
    first, later = make.run(ranks=2), again(make.run(ranks=2))
    traces = make.read([LAUNCH, *first, LAUNCH, *later])
    assert [[one.count for one in trace.log.starts] for trace in traces] == [[2], []]


def _logs_of_jobs(folder, *jobs):
    """Write a log of four ranks for each job, and one that names only some of its processes."""
    for number, host in jobs:
        ranks = [make.ready(rank, host=f"{host}{rank // 2}") for rank in range(4)]
        version = make.said(f"NCCL version 2.{number}.3+cuda12.4", host=f"{host}0")
        (folder / f"slurm-{number}.out").write_text("\n".join([version, *ranks, ""]))
    warning = make.said("Call to connect failed", 1, f"{jobs[0][1]}0", "WARN")
    (folder / "rank1.log").write_text(f"{warning}\n")


def test_of_logs_of_several_jobs_one_job_is_read(tmp_path):
    _logs_of_jobs(tmp_path, (9, "a"), (10, "b"))
    run = find_run([tmp_path])
    assert [path.name for path in run.files] == ["slurm-10.out"] * 4
    assert {one.path.name for one in run.strangers} == {"slurm-9.out", "rank1.log"}
    assert all("slurm-10.out; to read it" in one.reason for one in run.strangers)


def test_logs_of_the_processes_that_other_files_name_are_read(tmp_path):
    _logs_of_jobs(tmp_path, (9, "a"), (10, "b"))
    write_trace(tmp_path / "trace.rank00000.json", header(0, 4, host="a0", pid=1000))
    run = find_run([tmp_path])
    assert [one.path.name for one in run.strangers] == ["slurm-10.out"]


def _failures_of_jobs(folder, *names, ranks=(0, 1)):
    """Write logs in which no process has a number."""
    for name in names:
        lines = [f"[rank{rank}]: Traceback (most recent call last):" for rank in ranks]
        lines += [f"[rank{rank}]: ValueError: {name}" for rank in ranks]
        (folder / name).write_text("\n".join([*lines, ""]))


@pytest.mark.parametrize(
    "names",
    [
        ("train_v4_999.err", "train_v3_1000.out", "train_v3_1000.err"),
        ("n1_20260419_163606.log", "n1_20260420_083606.log"),
        ("slurm-1000-node101.out", "slurm-1001-node101.out", "slurm-1001-node102.out"),
        ("node101-1000.out", "node101-1001.out", "node102-1001.out"),
        ("slurm-98.out", "slurm-101.out"),
        ("train_9.log", "train_10.log"),
        ("n1_try1.log", "n1_try2.log", "n2_try2.log"),
        ("slurm-700_9.out", "slurm-700_10.out"),
        ("n1_2026-04-20.log", "n1_2026-05-01.log"),
        ("n1_2026-04-20_08-36-06.log", "n1_2026-04-20_16-36-06.log", "n2_2026-04-20_16-36-06.log"),
    ],
)
def test_of_logs_that_differ_in_the_number_of_their_job_the_last_job_is_read(tmp_path, names):
    first, second, *more = names
    _failures_of_jobs(tmp_path, first, second)
    for other in more:
        _failures_of_jobs(tmp_path, other, ranks=(2, 3))
    run = find_run([tmp_path])
    assert {one.path.name for one in run.strangers} == {first}
    assert {path.name for path in run.files} == {second, *more}
    assert f"of another job than {min([second, *more])}, as its name" in run.strangers[0].reason


def test_the_job_that_traces_name_is_read(tmp_path):
    _failures_of_jobs(tmp_path, "slurm-1000.out", "slurm-1001.out", ranks=(0,))
    assert [one.path.name for one in find_run([tmp_path]).strangers] == ["slurm-1000.out"]
    keys = job_keys({"SLURM_JOB_ID": "1000"})
    write_trace(tmp_path / "trace.rank00000.json", header(0, 1, job_keys=keys))
    assert [one.path.name for one in find_run([tmp_path]).strangers] == ["slurm-1001.out"]


@pytest.mark.parametrize("names", [("node101.log", "node102.log"), ("a_1.log", "a_2.log")])
def test_logs_of_the_nodes_of_a_job_are_read_together(tmp_path, names):
    _failures_of_jobs(tmp_path, names[0])
    _failures_of_jobs(tmp_path, names[1], ranks=(2, 3))
    assert not find_run([tmp_path]).strangers


@pytest.mark.parametrize("node", ["n1", "worker-12", "node_101"])
def test_watchdogs_of_two_nodes_may_have_one_rank_in_their_groups(tmp_path, node):
    waits = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, "
    for name in (node, "n3"):
        line = f"{waits}Timeout(ms)=6) ran for 60 milliseconds on {name}"
        (tmp_path / f"{name}.log").write_text(line)
    assert not find_run([tmp_path]).strangers


def test_logs_of_nodes_whose_ranks_are_guessed_are_read_together(tmp_path):
    for node in (1, 2):
        lines = [make.said("Using network IB", rank, f"node{node}") for rank in range(4)]
        (tmp_path / f"node{node}.log").write_text("\n".join(lines))
    assert not find_run([tmp_path]).strangers


def test_two_logs_of_the_same_processes_are_of_one_job(tmp_path):
    _logs_of_jobs(tmp_path, (9, "a"), (10, "a"))
    assert not find_run([tmp_path]).strangers
