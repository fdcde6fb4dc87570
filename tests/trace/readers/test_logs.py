from __future__ import annotations

import gzip
import json

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.environment import job_keys
from dsprof.errors import TraceError
from dsprof.findings.finding import Status
from dsprof.trace.rank_log import (
    FAILED,
    FAILED_FIRST,
    FROM_OUTSIDE,
    HOST_MEMORY,
    LAUNCHER,
    CollectiveTimeout,
    LastWork,
    LogMark,
)
from dsprof.trace.readers import reader_of
from dsprof.trace.readers.logs import LogReader
from dsprof.trace.readers.logs.lines import LONGEST_LINE_BYTES
from dsprof.trace.readers.logs.nccl_messages import form_of
from dsprof.trace.readers.logs.prefix import nccl_message, without_launcher
from dsprof.trace.run import find_run, read_run
from tests.factories import kineto
from tests.factories import logs as make
from tests.factories.trace import header
from tests.factories.trace_files import write_trace
from tests.shared_data import FOLDER


def only(lines):
    (trace,) = make.read(lines)
    return trace.log


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("", -1),
        ("[rank3]:", 3),
        ("[rank3]:[rank3]: ", 3),
        ("[1,23]<stdout>:", 23),
        ("[prterun-node7-4242@1,12]<stdout>: ", 12),
        ("Sat Nov 22 01:19:31 2026[1,9]<stderr>:", 9),
        ("[1,mpirank:9,algo-2]<stdout>:", 9),
        ("[pod/train-worker-1/pytorch] [rank9]: ", 9),
        ("2026-11-22T01:19:31.669794202Z stdout F [rank9]: ", 9),
        ("worker-1  | [rank9]: ", 9),
        ("node-1: [rank9]: ", 9),
        ("[default2]:", -1),
        ("17: ", 17),
        ("(train_fn pid=77, ip=10.0.0.1) ", -1),
        ("node-1: ", -1),
        ("2026-05-19T20:17:24.123Z [rank1]: ", 1),
        ("[2026-05-19 20:17:24,123] ", -1),
    ],
)
def test_what_launchers_put_before_a_line(prefix, rank):
    task = prefix == "17: "  # of srun
    *found, text = without_launcher(prefix + "host:12:34 [5] NCCL INFO Using network IB")
    assert found == [-1 if task else rank, rank if task else -1]
    message = nccl_message(text)
    assert (message.host, message.pid, message.device) == ("host", 12, 5)
    assert message.message == "Using network IB"


@pytest.mark.parametrize(
    ("evidence", "is_rank"),
    [
        (["1: [rank6]: Traceback (most recent call last):"], False),
        ([f"{rank // 2}: {make.ready(rank)}" for rank in range(4)], False),
        ([f"{rank}: {make.ready(rank)}" for rank in range(4)], True),
        (["1:   rank      : 6 (local_rank: 2)", "1:   exitcode  : 1 (pid: 7)"], False),
        (["1:   rank      : 1 (local_rank: 0)", "1:   exitcode  : 1 (pid: 7)"], True),
        (["1: Setting OMP_NUM_THREADS environment variable for each process to be 1"], False),
        (["1: [rank1]: 5: out of memory"], True),
        ([], True),
    ],
)
def test_a_task_of_srun_is_a_rank_unless_it_starts_several(evidence, is_rank):
    failure = f"1: {make.out_of_memory()}"
    for lines in ([failure, *evidence], [*evidence, failure]):
        [trace] = [one for one in make.read(lines) if one.log.out_of_memory]
        assert (trace.rank == 1 and not trace.log.strays) == is_rank
        assert bool(trace.log.strays) != is_rank


PRINTED = [
    "[2026-05-19 20:17:24,123] [INFO] [logging.py:60:log_dist] [Rank 0] DeepSpeed info: "
    "version=0.6.5, git-hash=unknown, git-branch=unknown",
    "[2026-05-19 20:17:24,123] [INFO] [config.py:906:print]   json = {",
    '    "fp16": {',
    '        "enabled": true',
    "    },",
    '    "zero_optimization": {"stage": 3, "stage3_prefetch_bukket_size": 6.5e+07}',
    "}",
]


@pytest.mark.parametrize("prefix", ["", "[default0]:"])
def test_the_configuration_that_deepspeed_prints_is_judged(prefix, tmp_path):
    lines = [prefix + line for line in PRINTED]
    lines.insert(4, "host:12:34 [0] NCCL INFO Using network IB")
    trace, *_ = make.read([*lines, "host:12:34 [0] NCCL INFO NET/IB : Using mlx5_0:1/IB"])
    (engine,) = trace.engines.values()
    assert engine.written["zero_optimization"]["stage"] == 3
    assert (engine.parameter_dtype, trace.header.versions) == ("float16", {"deepspeed": "0.6.5"})
    assert set(trace.log.values("network")) == {"IB"}
    path = tmp_path / "log"
    path.write_text("\n".join(lines))
    diagnosis = diagnose(find_run([path]))
    failed = {f.rule for f in diagnosis.findings if f.status is Status.FAIL}
    assert failed == {"unknown-config-key"}
    assert diagnosis.run.started == ""


@pytest.mark.parametrize("lines", [PRINTED, PRINTED[:1], PRINTED[1:]])
def test_what_deepspeed_prints_of_itself_is_enough(lines):
    (trace,) = make.read(lines)
    assert (trace.rank, trace.header.world_size) == (0, 0)
    assert len(trace.engines) == (len(lines) > 1)
    assert "counts for rank 0" in trace.notes[0].text


@pytest.mark.parametrize(("name", "rank"), [("rank12.log", 12), ("rank12345678.log", 0)])
def test_the_rank_in_the_name_of_a_log(tmp_path, name, rank):
    path = tmp_path / name
    path.write_text("\n".join(PRINTED))
    (trace,) = LogReader().read_traces(path)
    assert trace.rank == rank


@pytest.mark.parametrize("lines", [PRINTED[:-1], [*PRINTED[:4], "}"], PRINTED[2:]])
def test_half_a_configuration_is_none(lines):
    (trace,) = make.read([*lines, "host:12:34 [0] NCCL INFO Using network IB"])
    assert not trace.engines


def test_a_process_of_several_devices_is_several_ranks():
    process = "node0:12:{thread} [{device}] NCCL INFO "
    init = "comm 0x1 rank {rank} nranks {of} cudaDev {device} busId {device} - Init COMPLETE"
    lines = [
        (process + init).format(thread=20 + rank, device=device, rank=rank, of=of)
        for of, places in ((2, [(0, 0), (0, 1)]), (4, [(1, 3), (0, 2)]))
        for device, rank in places
    ]
    first, second = make.read([*lines, "node0:12:20 [1] NCCL INFO Using network IB"])
    assert [(one.rank, one.header.pid, one.header.world_size) for one in (first, second)] == [
        (2, 12, 4),
        (3, 12, 4),
    ]
    assert set(first.log.values("network")) == {"IB"}
    assert not second.log.values("network")


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


def test_every_known_sample_is_understood():
    samples = FOLDER.parent / "facts" / "comm_environment" / "log_samples.txt"
    if not FOLDER.is_dir():
        pytest.skip("../shared is absent")
    wrong = []
    for line in samples.read_text().splitlines():
        if line.startswith("#"):
            continue
        label, _, text = line.split("\t")
        said = nccl_message(without_launcher(text)[-1])
        found = said and form_of(said.message)
        if label in ("warn", "call_trace"):
            right = said is not None and said.level == label[:4].upper()
        elif label == "negative":
            right = said is None
        else:
            right = found is not None and found[0].label == label
        if not right:
            wrong.append(line)
    assert not wrong


def test_facts_go_to_the_rank_of_the_process():
    lines = make.run(
        make.every("Using network IB"),
        make.said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", 0),
        make.said("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA", 1),
        "NCCL version 2.21.5+cuda12.4",
    )
    traces = make.read(lines)
    assert [trace.rank for trace in traces] == [0, 1, 2, 3]
    assert {trace.header.world_size for trace in traces} == {4}
    assert [trace.header.host for trace in traces] == ["node0", "node0", "node1", "node1"]
    assert traces[0].log.values("path") == {"P2P/CUMEM": 1}
    assert traces[1].log.values("path") == {"NET/IB/GDRDMA": 1}
    assert all(trace.log.values("version") == {"NCCL 2.21.5": 1} for trace in traces)
    assert not any(trace.notes for trace in traces)


@pytest.mark.parametrize("behind", ["(PCI)", "(PCI)/Shared"])
def test_rdma_of_a_device_that_reaches_its_adapter_over_pcie_is_direct(behind):
    line = make.said(f"Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA{behind}")
    ((trace),) = make.read([line])
    assert trace.log.values("path") == {"NET/IB/GDRDMA": 1}


def test_the_largest_communicator_gives_the_rank():
    text = "comm 0x1 rank {} nranks 2 cudaDev 0 busId {} - Init COMPLETE"
    small = [make.said(text.format(r % 2, r % 2), r) for r in range(4)]
    assert [trace.header.pid for trace in make.read(make.run(small))] == [1000, 1001, 1002, 1003]
    alone = make.read(small)  # two groups of two, nobody says which rank is which
    assert [trace.header.pid for trace in alone] == [1000, 1001, 1002, 1003]
    assert alone[0].header.world_size == 0
    assert "does not say which ranks" in alone[0].notes[0].text


def test_lines_are_found_behind_colours_bars_and_between_other_text():
    bar = "10%|#### | 1/10 [00:01<00:09]\r20%|##"
    line = make.said("Using network IB")
    log = only([f"{bar}\r\x1b[32m{line}\x1b[0m", "x" * (1 << 21), make.said("Using network IB")])
    assert log.values("network") == {"IB": 2}


@pytest.mark.parametrize(
    "before",
    [
        " 20%|##        | 2/10 [00:02<00:08, 1.0it/s]",  # a progress bar without an end of line
        "Epoch 3:  20%|##  | 20/100 [00:02<00:08, 9.93it/s, v_num=0]",
        "loss ",
        "loss",
        "node0:1000:1000 [0] NCCL INFO Channel 01/0 : 0[0] -> 2[0] [receive] via NET/IB/1/GDRD",
        "node0:1000:1000 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx",
    ],
)
def test_text_that_a_line_runs_into_makes_no_rank(before):
    usual = make.every("Channel 00/0 : 0[0] -> 1[1] via NET/IB/0/GDRDMA")
    lines = make.run(usual, before + make.said("Using network IB", 3))
    traces = make.read(lines)
    assert [(trace.rank, trace.header.world_size) for trace in traces] == [(n, 4) for n in range(4)]
    assert {trace.header.host for trace in traces} == {"node0", "node1"}
    assert [len(trace.log.values("network")) for trace in traces] == [0, 0, 0, 1]
    assert not any(trace.notes or trace.log.variables for trace in traces)
    assert all(set(trace.log.values("path")) <= {"NET/IB/GDRDMA"} for trace in traces)


@pytest.mark.parametrize("name", ["e1", "nodnode1", "ne1", "node0"])  # or that of another host
def test_a_process_whose_name_was_cut_is_the_one_of_its_number(name):
    lines = make.run(make.said("Call failed", 3, host=name, level="WARN"))
    traces = make.read(lines)
    assert [trace.rank for trace in traces] == [0, 1, 2, 3]
    assert [list(trace.log.warnings) for trace in traces] == [[], [], [], ["Call failed"]]


def test_another_process_of_the_same_number_is_a_rank():
    """Each container counts its processes from 1."""
    lines = make.run(make.every("Using network IB"), ranks=2)
    pods = [line.replace("1000:1000", "77:77").replace("node", "pod") for line in lines]
    assert len(make.read([*lines, *(line for line in pods if "Init" not in line)])) > 2


@pytest.mark.parametrize("name", ["<host>", "***"])
def test_names_of_hosts_may_be_hidden(name):
    lines = [line.replace("node0", name) for line in make.run()]
    assert [trace.header.host for trace in make.read(lines)] == [name, name, "node1", "node1"]


def test_a_warning_survives_a_line_that_cuts_it():
    cut = make.said("Call to connect returned Connection ref", 0, level="WARN")
    traces = make.read(make.run(cut + " " + make.said("Using network IB", 3)))
    assert list(traces[0].log.warnings) == ["Call to connect returned Connection ref"]
    assert [list(trace.log.values("network")) for trace in traces] == [[], [], [], ["IB"]]


def test_a_long_line_is_cut():
    line = make.said("NCCL_NET set by environment to " + "x" * 3 * LONGEST_LINE_BYTES)
    assert len(only([line]).variables["NCCL_NET"]) <= 200


def test_variables_warnings_and_numbered_algorithms():
    log = only(
        [
            make.said("NCCL_IB_DISABLE set by environment to 1."),
            make.said("NCCL_SOCKET_IFNAME set by environment to eth0"),
            make.said("Call to connect returned Connection refused 0x7f12", level="WARN"),
            make.said("262144 Bytes -> Algo 1 proto 2 time 54.7"),
            make.said("AllReduce: 33554432 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}"),
            "DistBackendError: NCCL error in: /pt/PGNCCL.cpp:1331, unhandled system error",
        ]
    )
    assert log.variables == {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0"}
    assert list(log.warnings) == [
        "Call to connect returned Connection refused …",
        "NCCL error: unhandled system error",
    ]
    assert log.values("algorithm") == {"Ring/Simple": 1, "AllReduce by RING/LL": 1}


def test_what_differs_from_line_to_line_stays_bounded():
    lines = [make.said(f"Using network N{i}") for i in range(5000)]
    lines += [make.said(f"strange thing {i}", level="WARN") for i in range(5000)]
    log = only(lines)
    assert len(log.values("network")) == len(log.warnings) == 64


def test_out_of_memory_of_both_generations():
    old = (
        "RuntimeError: CUDA out of memory. Tried to allocate 172.00 MiB (GPU 1; 79.35 GiB total "
        "capacity; 73.95 GiB already allocated; 0 bytes free; 76.80 GiB reserved in total by "
        "PyTorch)"
    )
    (text,) = only([old]).out_of_memory
    assert (text.device, text.free_bytes, text.process_bytes) == (1, 0, -1)
    assert text.unallocated_bytes == pytest.approx(2.85 * 2**30, rel=1e-3)
    new = make.out_of_memory(others="Process 77 has 30.00 GiB memory in use. ")
    hip = new.replace("CUDA", "HIP").replace("total capacity", "total capacty")
    (text,) = only([new, "[rank0]: " + new, hip]).out_of_memory
    assert text.others == ((77, 30 * 2**30),)
    assert text.process_bytes == 79 * 2**30


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


@pytest.mark.parametrize(("who", "absent"), [("Rank 1", (1,)), ("Ranks 1, 3", (1, 3))])
def test_the_ranks_that_did_not_come_to_a_monitored_barrier(who, absent):
    said = f"{who} failed to pass monitoredBarrier in 12000 ms"
    (trace,) = make.read([f"[rank0]:[E1129 ProcessGroupGloo.cpp:67] [Rank 0]: {said}"])
    assert trace.rank == 0
    assert trace.log.timeouts == [CollectiveTimeout("barrier", waited_ms=12_000, absent=absent)]


def test_comms_logger_lines_of_a_release_that_adds_up_its_times():
    info = "[INFO] [utils.py:1:f] [Rank 0] DeepSpeed info: version=0.19.8, git-hash=unknown"
    lines = [make.call("all_reduce", ms) for ms in (2, 5, 9)]
    log = only([info, *lines])
    (calls,) = log.calls.values()
    assert (calls.calls, calls.total_ns, calls.world_size) == (3, 9_000_000, 4)
    assert "sums of all times" in log.comms_logger
    (calls,) = only([info.replace("0.19.8", "0.17.6"), *lines]).calls.values()
    assert calls.total_ns == 16_000_000


def test_times_that_only_rise_are_sums_whatever_the_release():
    rising = only([make.call("all_reduce", ms) for ms in range(1, 11)])
    assert next(iter(rising.calls.values())).total_ns == 10_000_000
    mixed = only([make.call("all_reduce", ms) for ms in (1, 3, 2, 4, 5, 6, 7, 8, 9)])
    assert next(iter(mixed.calls.values())).total_ns == 45_000_000


def test_the_summary_of_comms_logger():
    rows = [("2.0 KB", 146, 11.12, 0.08, 0.43, 0.41), ("98.25 MB", 1, 8317.12, 8317.12, 0.2, 0.19)]
    lines = [*make.table("broadcast | [Caller Func: init]", *rows), "loss 3.2"]
    log = only(lines)
    assert {kind: calls.total_ns for kind, calls in log.calls.items()} == {
        ("broadcast", "init", 2048): 11_120_000,
        ("broadcast", "init", 103_022_592): 8_317_120_000,
    }
    version = "[INFO] [utils.py:1:f] [Rank 0] DeepSpeed info: version=0.18.9, git-hash=unknown"
    sums = only([version, *lines]).calls.values()
    assert [(calls.calls, calls.total_ns) for calls in sums] == [(146, None), (1, None)]


@pytest.mark.parametrize(
    ("others", "process", "left"),
    [
        ("Process 77 has 79.90 GiB memory in use. ", 79.9, []),
        (
            "Process 8 has 0.80 GiB memory in use. Process 77 has 79.10 GiB memory in use. ",
            79.1,
            [8],
        ),
        ("Process 77 has 30.00 GiB memory in use. ", -1, [77]),
    ],
)
def test_a_process_in_a_container_is_not_taken_for_another_one(others, process, left):
    text = (
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 80.00 GiB "
        f"of which 100.00 MiB is free. {others}Of the allocated memory {{}} GiB is allocated by "
        "PyTorch, and 2.00 GiB is reserved by PyTorch but unallocated."
    )
    (found,) = only([text.format("47.50" if process < 0 else "76.00")]).out_of_memory
    assert found.process_bytes == (-1 if process < 0 else round(process * 2**30))
    assert [pid for pid, _ in found.others] == left


def test_a_summary_counts_no_call_again_that_lines_told():
    lines = [make.call("all_reduce", ms) for ms in (9, 2, 5)]
    (kind,) = only(lines).calls
    rows = [("1.0 MB", 3, 16.0, 5.33, 0.43, 0.41)]
    log = only([*lines, *make.table("all_reduce", *rows)])
    (told,) = (calls for key, calls in log.calls.items() if key[0] == kind[0])
    assert (told.calls, told.total_ns, told.source) == (3, 16_000_000, "summary")


@pytest.mark.parametrize("head", ["{'lr': 1}\n", '{"a": {\n "b": 1\n}}\n', "[1]\n", "\ufeff"])
def test_what_a_log_begins_with_makes_no_difference(tmp_path, head):
    path = tmp_path / "any"
    lines = make.run(make.every("Using network IB"))
    path.write_text(head + "\n".join(lines), encoding="utf-8")
    assert isinstance(reader_of(path), LogReader)
    assert [trace.rank for trace in LogReader().read_traces(path)] == [0, 1, 2, 3]


def test_a_log_that_powershell_redirected(tmp_path):
    path = tmp_path / "any"
    path.write_text("\n".join(make.run(make.every("Using network IB"))), encoding="utf-16")
    assert isinstance(reader_of(path), LogReader)
    assert [trace.rank for trace in LogReader().read_traces(path)] == [0, 1, 2, 3]


@pytest.mark.parametrize("indent", [None, 1])
def test_json_in_which_a_log_is_quoted_is_no_log(tmp_path, indent):
    path = tmp_path / "any"
    path.write_text(json.dumps({"text": make.said("Using network IB"), "more": [1]}, indent=indent))
    assert reader_of(path) is None


def test_a_log_of_another_run_says_no_time_at_which_it_began(tmp_path):
    kineto.write(tmp_path / "a.json", [kineto.copy(0, 1)], world_size=1)
    (tmp_path / "b.log").write_text("\n".join(make.run()))
    reasons = [stranger.reason for stranger in find_run([tmp_path]).strangers]
    assert reasons
    assert all("of another run than" in reason for reason in reasons)


def test_logs_are_known_by_content(tmp_path):
    path = tmp_path / "any"
    for text, known in [
        (make.said("Using network IB"), True),
        ("+ export A=1\n" * 30_000 + make.said("Using network IB"), True),
        ("Epoch 3 loss 0.33 via network\n", False),
        ('{"NCCL INFO ": 1}', False),
    ]:
        path.write_bytes(gzip.compress(text.encode()))
        assert isinstance(reader_of(path), LogReader) is known
    assert not LogReader().recognises(b"")


def test_a_log_that_says_nothing_is_refused_in_one_line(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("[2026-01-01 00:00:00,000] [INFO] [launch.py:1:main] started\n")
    with pytest.raises(TraceError, match="set NCCL_DEBUG=INFO") as refusal:
        find_run([path])
    assert "\n" not in str(refusal.value)


def test_logs_of_a_rank_add_up_and_copies_do_not(tmp_path):
    lines = make.run(make.every("Using network IB"))
    (tmp_path / "a.log").write_text("\n".join(lines))
    (tmp_path / "copy.log").write_text("\n".join(lines))
    (tmp_path / "b.log").write_text("\n".join(make.run(make.every("Using network IB"), "x")))
    run = find_run([tmp_path])
    assert [stranger.path.name for stranger in run.strangers] == ["copy.log"]
    traces = list(read_run(run))
    assert [trace.log.values("network") for trace in traces] == [{"IB": 2}] * 4
    assert all(len(trace.beside) == 1 for trace in traces)


def test_the_name_of_a_file_tells_the_rank_where_nothing_else_does():
    (trace,) = make.read([make.said("Using network IB")], name="nccl_rank7.log")
    assert (trace.rank, trace.notes) == (7, [])
    (trace,) = make.read([make.out_of_memory()], name="rank_3.txt")
    assert trace.rank == 3


def test_a_log_beside_profiles_of_the_same_run(tmp_path):
    for rank in range(4):
        kineto.write(tmp_path / f"{rank}.json", kineto.steps(3, 60, 20), rank, world_size=4)
    (tmp_path / "train.log").write_text("\n".join(make.run(make.every("Using network IB"))))
    diagnosis = diagnose(find_run([tmp_path]))
    assert diagnosis.devices
    (network,) = (fact for fact in diagnosis.logged if fact.kind == "network")
    assert (network.value, network.ranks) == ("IB", [0, 1, 2, 3])
    (found, *_) = read_run(find_run([tmp_path]))
    assert found.log.host == "node0"  # the profiler did not say it
    (tmp_path / "train.log").write_text("\n".join(make.run(ranks=8)))
    strangers = find_run([tmp_path]).strangers
    assert [stranger.path.name for stranger in strangers] == ["train.log"]
    assert "of another run" in strangers[0].reason


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
        ("srun: error: n1: task 3: Exited with exit code 143", ""),  # srun or scancel ended it
        ("srun: error: n1: task 3: Terminated", ""),
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
    at = "W0409 07:28:49.530000 1359 torch/distributed/elastic/agent/server/api.py:719]"
    line = f"{at} Received {number} death signal, shutting down workers"
    (trace,) = make.read([line])
    assert trace.log.values(FROM_OUTSIDE) == {name: 1}


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


def averages(first, *seconds):
    """What timers of 2021 print every 10 steps of 64 samples that last so long."""
    steps, time = 10, 8 * first
    for one in (*seconds, 0):
        told = f"0/{steps}, SamplesPerSec={64 * (steps - 2) / time}"
        yield f"[2021-06-12 05:10:20,890] [INFO] [timer.py:160:stop] {told}"
        steps, time = steps + 10, time + 10 * one


def test_the_rate_between_two_averages_since_the_start():
    (trace,) = make.read([*averages(0.5, 0.5, 2.0, 0.5)])
    rates = [(one.step, pytest.approx(one.samples_per_s)) for one in trace.log.throughput]
    assert rates == [(20, 128), (30, 32), (40, 128)]
    memory = ", MemAllocated=0.26GB, MaxMemAllocated=9.02GB"
    again = [line + memory for line in averages(1.0, 1.0, 1.0)]
    (trace,) = make.read([*averages(0.5, 0.5), *again])  # and a run that starts anew
    found = [(one.step, one.allocated_gib) for one in trace.log.throughput]
    assert found == [(20, -1.0), (20, 0.26), (30, 0.26)]


def test_averages_of_which_no_rate_is_known():
    pairs = zip(averages(0.5, 0.5), averages(1.0, 1.0), strict=True)
    later = [line.replace("] 0/", "] 1/") for line in averages(0.5, 0.5)]
    wrong = ["] 0/20, SamplesPerSec=1e", "] 0/30, SamplesPerSec=0", "] 0/2, SamplesPerSec=9"]
    for lines in (sum(pairs, ()), later, wrong):
        (trace,) = make.read(["DeepSpeed info: version=0.4.0", *lines])
        assert len(trace.log.throughput) == 0
    twice = [line for line in averages(0.5, 0.5, 0.5) for _ in range(2)]
    (trace,) = make.read(twice)
    assert [one.step for one in trace.log.throughput] == [20, 30]


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
    assert all("slurm-10.out, so of another job; " in one.reason for one in run.strangers)


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
    assert f"of another job than {min([second, *more])}, by" in run.strangers[0].reason


def test_the_rank_in_the_name_of_a_log_is_no_number_of_a_job(tmp_path):
    names = [f"rank{rank}_{job}.log" for rank in (100, 101) for job in (7000, 7001)]
    for name in names:
        (tmp_path / name).write_text("\n".join([*PRINTED, name]))
    run = find_run([tmp_path])
    assert [path.name for path in run.files] == [names[1], names[3]]


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


def test_two_logs_of_the_same_processes_are_of_one_job(tmp_path):
    _logs_of_jobs(tmp_path, (9, "a"), (10, "a"))
    assert not find_run([tmp_path]).strangers
