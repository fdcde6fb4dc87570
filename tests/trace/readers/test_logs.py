"""Logs of runs: which rank wrote a line, and what NCCL and DeepSpeed say in it."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.errors import TraceError
from dsprof.findings.finding import Status
from dsprof.trace.readers import reader_of
from dsprof.trace.readers.logs import LogReader
from dsprof.trace.readers.logs.lines import LONGEST_LINE_BYTES
from dsprof.trace.readers.logs.nccl_messages import form_of
from dsprof.trace.readers.logs.prefix import nccl_message, without_launcher
from dsprof.trace.run import find_run, read_run
from tests.factories import kineto
from tests.factories import logs as make
from tests.shared_data import FOLDER


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
    assert "its lines count for rank 0" in trace.notes[0].text


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
    log = make.log_of(
        [f"{bar}\r\x1b[32m{line}\x1b[0m", "x" * (1 << 21), make.said("Using network IB")]
    )
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


@pytest.mark.parametrize("cut", ["node1:10", "x"])
def test_a_damaged_line_that_tells_the_rank_names_no_further_host(cut):
    lines = make.run(make.every("Using network IB"))
    traces = make.read([*lines[:-1], f"2 p2p channels {cut}{lines[-1]}"])
    assert [trace.header.host for trace in traces] == ["node0", "node0", "node1", "node1"]
    assert [len(trace.log.values("network")) for trace in traces] == [1, 1, 1, 1]


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


def test_a_text_that_only_mentions_nccl_has_nothing_to_judge():
    with pytest.raises(TraceError, match="nothing to judge in this log"):
        make.read(["$ grep -c 'NCCL INFO Broadcast' train.log", "2590"])


def test_a_long_line_is_cut():
    line = make.said("NCCL_NET set by environment to " + "x" * 3 * LONGEST_LINE_BYTES)
    assert len(make.log_of([line]).variables["NCCL_NET"]) <= 200


def test_variables_warnings_and_numbered_algorithms():
    log = make.log_of(
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
    log = make.log_of(lines)
    assert len(log.values("network")) == len(log.warnings) == 64


def test_out_of_memory_of_both_generations():
    old = (
        "RuntimeError: CUDA out of memory. Tried to allocate 172.00 MiB (GPU 1; 79.35 GiB total "
        "capacity; 73.95 GiB already allocated; 0 bytes free; 76.80 GiB reserved in total by "
        "PyTorch)"
    )
    (text,) = make.log_of([old]).out_of_memory
    assert (text.device, text.free_bytes, text.process_bytes) == (1, 0, -1)
    assert text.unallocated_bytes == pytest.approx(2.85 * 2**30, rel=1e-3)
    (text,) = make.log_of([old.replace("CUDA", "NPU").replace("GPU", "NPU")]).out_of_memory
    assert (text.device, text.kind) == (1, "NPU")
    new = make.out_of_memory(others="Process 77 has 30.00 GiB memory in use. ")
    hip = new.replace("CUDA", "HIP").replace("total capacity", "total capacty")
    text, of_hip = make.log_of([new, "[rank0]: " + new, hip]).out_of_memory
    assert of_hip == replace(text, kind="HIP")
    assert text.others == ((77, 30 * 2**30),)
    assert text.process_bytes == 79 * 2**30


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
    (found,) = make.log_of([text.format("47.50" if process < 0 else "76.00")]).out_of_memory
    assert found.process_bytes == (-1 if process < 0 else round(process * 2**30))
    assert [pid for pid, _ in found.others] == left


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


@pytest.mark.parametrize("end", [make.said("Using network IB"), "no sign of a library"])
def test_a_long_log_is_also_known_by_its_end(tmp_path, end):
    """What a job prints of its losses can be longer than what is read to recognise a file."""
    path = tmp_path / "any"
    path.write_text("{'loss': 2.125, 'epoch': 0.5}\n" * 150_000 + end)
    assert (reader_of(path) is not None) is ("NCCL" in end)


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


def test_the_rank_in_the_name_of_a_log_is_no_number_of_a_job(tmp_path):
    names = [f"rank{rank}_{job}.log" for rank in (100, 101) for job in (7000, 7001)]
    for name in names:
        (tmp_path / name).write_text("\n".join([*PRINTED, name]))
    run = find_run([tmp_path])
    assert [path.name for path in run.files] == [names[1], names[3]]
