"""Benchmarks that stand in logs."""

from __future__ import annotations

import pytest

from dsprof.findings.finding import Finding, Severity, Status
from dsprof.rules.communication.nccl_warning import NcclWarning
from dsprof.rules.communication.slow_benchmark import SlowBenchmark
from dsprof.trace.readers.logs import READER
from tests.factories import logs as make
from tests.factories.trace import judged, rank_trace

COLUMNS = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
GIB16 = 17179869184
SLOW, WHOLE, FAST = 41.5, 352.0, 470.0


def nccl_tests(
    busbw: float, hosts: int = 1, wrong: int = 0, device: str = "NVIDIA H100 80GB HBM3"
) -> list[str]:
    """The output of all_reduce_perf on eight ranks a host."""
    ranks = [
        f"#  Rank {rank:2} Group  0 Pid  {9000 + rank} on    gpu-{rank // 8} device  {rank % 8} "
        f"[0000:2{rank % 8}:00] {device}"
        for rank in range(8 * hosts)
    ]
    row = "{:>12} {:>13}     float     sum      -1   {:>7} {:>7.2f} {:>7.2f} {:>6}"
    rows = [row.format(1024, 256, 20.0, 0.05, 0.09, 0)]
    rows += [row.format(GIB16, GIB16 // 4, 5000.0, busbw / 1.75, busbw, wrong)]
    both = [f"{one}   5001.0   {busbw / 1.75:.2f}   {busbw:.2f}    N/A" for one in rows]
    return [
        "# Collective test starting: all_reduce_perf",
        *(*ranks, "#", COLUMNS, "#        (B)    (elements)      (us)  (GB/s)  (GB/s)", *both),
        "# Out of bounds values : 0 OK",
    ]


def all_reduce_bench(busbw: float, ranks: int = 8) -> list[str]:
    """The output of all_reduce_bench.py."""
    return [
        "- hardware: _CudaDeviceProperties(name='NVIDIA H100 80GB HBM3', major=9, minor=0)",
        f"The average bandwidth of all_reduce over {ranks} ranks (5 warmups / 20 trials):",
        *("", "| payload |    busbw   |    algbw   |", "| ------: | ---------: | ---------: |"),
        f"|   32KiB |   1.20GBps |   {1.2 / 1.75:.2f}GBps |",
        f"|   16GiB | {busbw:6.2f}GBps | {busbw / 1.75:6.2f}GBps |",
        "Legend: 1KiB = 2**10 Bytes, 1MiB = 2**20 Bytes, 1GiB = 2**30 Bytes",
    ]


def ds_bench(busbw: float, unit: str = "Gbps", raw: bool = False, node: str = "") -> list[str]:
    """The output of ds_bench, in 10^9 bits or bytes; raw without units; of pdsh with its node."""
    bits = 8 if unit == "Gbps" else 1
    size, us, ms = (str(GIB16), "", "") if raw else ("16.0 GB", " us", " ms")
    return [
        node + line
        for line in (
            "---- Performance of all_reduce on 8 devices ---------------------------------",
            f"Size (Bytes)      Description     Duration     Throughput ({unit})  BusBW ({unit})",
            "-----------------------------------------------------------------------------",
            f"{64 if raw else '64.0 B':<20} 16x4         167.130{us}     0.006           0.006",
            f"{size:<20} 4294967296x4      5.00{ms}       "
            f"{busbw * bits / 1.75:.3f}   {busbw * bits:.3f}        ",
        )
    ]


def early_all_reduce_bench(busbw: float) -> list[str]:
    """What early releases print of each trial; the throughput is that of twice the payload."""
    algorithm = 2 * GIB16 / 5.0 * 8
    return [
        *("ignore me 18186434", "3:", " duration: 5.0000 sec"),
        f" algo throughput: {algorithm:.4f} bps, {algorithm / 1e9:.4f} Gbps",
        f" busbw: {busbw * 8:.4f}  Gbps",
    ]


def findings(rule, lines: list[str]) -> list[Finding]:
    return judged(rule, *make.read(lines))


def of(op: str, lines: list[str]) -> list[str]:
    return [line.replace("all_reduce", op) for line in lines]


def test_each_collective_of_a_log_is_judged():
    lines = [*nccl_tests(FAST), *of("all_gather", nccl_tests(SLOW)), *nccl_tests(SLOW)]
    (finding,) = findings(SlowBenchmark(), lines)
    assert finding.status is Status.FAIL
    assert finding.summary.startswith("all_gather of 16.0 GiB over 8 ranks")
    assert len(finding.evidence[0].rows) == 6


def test_a_log_that_contains_only_trials_is_recognised():
    assert READER.recognises("\n".join(early_all_reduce_bench(FAST)).encode())


def test_a_bandwidth_that_no_hardware_reaches_is_not_believed():
    lines = [*nccl_tests(30_000.0), *of("all_gather", nccl_tests(WHOLE))]
    (finding,) = findings(SlowBenchmark(), lines)
    assert finding.status is Status.PASS
    assert finding.summary.startswith("all_gather of 16.0 GiB")


def test_where_all_collectives_are_fast_the_fastest_is_named():
    lines = [*nccl_tests(FAST), *of("all_gather", nccl_tests(WHOLE))]
    (finding,) = findings(SlowBenchmark(), lines)
    assert finding.status is Status.PASS
    assert finding.summary.startswith("all_reduce of 16.0 GiB")


@pytest.mark.parametrize("op", ["sendrecv", "hypercube"])
def test_what_may_use_one_link_of_several_is_not_judged(op):
    (finding,) = findings(SlowBenchmark(), of(op, nccl_tests(SLOW)))
    assert finding.status is Status.INFO


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (nccl_tests(SLOW), Status.FAIL),
        (nccl_tests(WHOLE), Status.PASS),
        (nccl_tests(FAST), Status.PASS),
        (nccl_tests(SLOW, hosts=2), Status.INFO),  # the network is not named
        (nccl_tests(SLOW, device="Some Accelerator"), Status.INFO),
        (all_reduce_bench(WHOLE), Status.PASS),
        (all_reduce_bench(SLOW), Status.INFO),  # it does not say how many hosts
        (ds_bench(SLOW), Status.INFO),
    ],
)
def test_a_benchmark_is_judged_by_its_links(lines, status):
    (finding,) = findings(SlowBenchmark(), lines)
    assert finding.status is status
    assert "all_reduce of 16.0 GiB over" in finding.summary


def test_a_slow_benchmark_names_both_figures():
    (finding,) = findings(SlowBenchmark(), nccl_tests(SLOW))
    assert finding.severity is Severity.HIGH
    assert "41.5 GB/s" in finding.summary
    assert "NVLink 4" in finding.summary
    assert "nvidia-smi topo -m" in finding.action
    largest, *_ = finding.evidence[0].rows
    assert largest[1] == max(row[1] for row in finding.evidence[0].rows) == 16 << 30
    assert largest[2] == pytest.approx(SLOW * 1e9)


@pytest.mark.parametrize(
    "form", [{}, {"unit": "GBps"}, {"raw": True}, {"node": "node-1: "}, {"node": "> n1.x: "}]
)
def test_all_forms_of_ds_bench_are_read(form):
    ((trace),) = make.read(ds_bench(SLOW, **form))
    assert trace.log is not None
    assert [row.nbytes for row in trace.log.measured] == [64, 16 << 30]
    assert trace.log.measured[1].busbw == pytest.approx(SLOW * 1e9)


def test_ranks_and_devices_of_rccl_tests_are_read():
    lines = [
        *(
            f"#   Rank {rank:2} Pid  {9000 + rank} on       gpu-0 device {rank:2} "
            f"[0000:0c:00.{rank}] AMD Instinct MI300X"
            for rank in range(8)
        ),
        *nccl_tests(WHOLE)[9:],
    ]
    ((trace),) = make.read(lines)
    assert trace.log is not None
    (row, *_) = trace.log.measured
    assert (row.ranks, row.host_names, row.device) == (8, ("gpu-0",), "AMD Instinct MI300X")
    (finding,) = findings(SlowBenchmark(), [*lines[:8], *nccl_tests(SLOW)[9:]])
    assert "rocm-smi --showtopo" in finding.action


def test_each_benchmark_of_a_file_counts_its_own_ranks():
    ((trace),) = make.read([*nccl_tests(SLOW), *nccl_tests(WHOLE)])
    assert trace.log is not None
    assert {(row.ranks, row.hosts) for row in trace.log.measured} == {(8, 1)}


def test_early_nccl_tests_print_an_error_and_no_root():
    lines = [
        "#       size         count    type   redop     time   algbw   busbw  error",
        "  4294967296    1073741824   float     sum    34176  125.67  235.63  2e-07",
    ]
    ((trace),) = make.read(lines)
    assert trace.log is not None
    assert [(row.busbw, row.wrong) for row in trace.log.measured] == [(235.63e9, 0)]


def test_early_nccl_tests_of_what_reduces_nothing_print_no_reduction():
    lines = [
        "#       size         count    type   redop     time   algbw   busbw  error",
        "  8589934592      67108864   float            33646  255.31  223.39    N/A",
    ]
    ((trace),) = make.read(lines)
    assert [(row.nbytes, row.busbw) for row in trace.log.measured] == [(8 << 30, 223.39e9)]


def test_lines_of_others_between_rows_cut_no_table_short():
    others = [
        *(f"gpu-0:9{i}:1 [0] NCCL INFO Channel {i} : 0[0] -> 1[1] via P2P/IPC" for i in range(99)),
        *["[gpu-0:09000] Read -1, expected 4096, errno = 1"] * 12,
    ]
    lines = [part for line in nccl_tests(WHOLE) for part in (*others, line)]
    ((trace),) = (one for one in make.read(lines) if one.log.measured)
    assert [row.nbytes for row in trace.log.measured] == [1024, GIB16]


def test_rows_of_ten_seconds_have_an_exponent():
    row = (
        " 17179869184 2147483648  double  sum  -1  1.8e+07  0.97  0.97  0  1.7e+07  0.99  0.99  N/A"
    )
    ((trace),) = make.read([COLUMNS, row])
    assert [one.busbw for one in trace.log.measured] == [0.97e9]
    (trace,) = make.read([COLUMNS, row, row.replace("0.97  0.97", "9e+99  9e+99")])
    assert [one.busbw for one in trace.log.measured] == [0.97e9]


def test_terabits_per_second_of_an_early_benchmark_have_13_digits():
    bits_per_s = 2 * GIB16 * 8 / 0.08
    lines = early_all_reduce_bench(WHOLE)
    lines[2:4] = [" duration: 0.0800 sec", f" algo throughput: {bits_per_s:.4f} bps, 3436.0 Gbps"]
    (trace,) = make.read(lines)
    assert [one.nbytes for one in trace.log.measured] == [GIB16]


def test_mpirun_tags_each_part_of_a_row():
    tag = "[1,0]<stdout>:"
    lines = [f"{tag}{line}".replace("-1  ", f"-1{tag}  ", 1) for line in nccl_tests(WHOLE)]
    ((trace),) = (one for one in make.read(lines) if one.log.measured)
    assert [(row.nbytes, row.ranks) for row in trace.log.measured] == [(1024, 8), (GIB16, 8)]


def test_ranks_of_a_list_without_its_begin_are_counted_by_their_numbers():
    lines = [line for line in nccl_tests(WHOLE) if "Rank  0" not in line]
    ((trace),) = (one for one in make.read(lines) if one.log.measured)
    assert {row.ranks for row in trace.log.measured} == {8}


def test_what_follows_a_table_is_no_row_of_it():
    row = nccl_tests(WHOLE)[-2]
    later = ["loss: 3", "5 x 1.0 2.0 3.0", *("step 1, loss: 3" for _ in range(40)), row]
    ((trace),) = make.read([*nccl_tests(WHOLE), *later])
    assert len(trace.log.measured) == 2


def test_trials_of_an_early_benchmark_are_read():
    (finding,) = findings(SlowBenchmark(), make.run(early_all_reduce_bench(SLOW)))
    assert finding.status is Status.INFO
    assert "all_reduce of 16.0 GiB reaches a bus bandwidth of 41.5 GB/s" in finding.summary


def test_wrong_elements_are_critical():
    wrong, _ = findings(SlowBenchmark(), nccl_tests(WHOLE, wrong=3))
    assert (wrong.status, wrong.severity) == (Status.FAIL, Severity.CRITICAL)
    assert "3 wrong elements" in wrong.summary
    wrong, _ = findings(SlowBenchmark(), nccl_tests(WHOLE, wrong=1))
    assert "returned 1 wrong element." in wrong.summary


@pytest.mark.parametrize(
    ("out_of_place", "in_place", "wrong"),
    [("0", "12", 12), ("3", "4", 7), ("1.04858e+06", "N/A", 1_048_580), ("0", "9e+99", 1 << 50),
     ("N/A", "N/A", 0), ("1e+00", "2e-07", 0)],
)  # fmt: skip
def test_wrong_elements_count_in_place_and_out_of_place(out_of_place, in_place, wrong):
    row = f"  4294967296 1073741824 float sum -1 34176 125.67 235.63 {out_of_place:>6}"
    row += f"  34180 125.66 235.61 {in_place:>6}"
    ((trace),) = make.read([COLUMNS, row])
    assert trace.log is not None
    assert [one.wrong for one in trace.log.measured] == [wrong]


def test_times_of_iterations_are_passed_over():
    row = "  4294967296 1073741824 float sum -1 34176 125.67 235.63 0"
    ((trace),) = make.read([COLUMNS, f"{row} 34100.0 34200.0 34190.0 0.15 34180 125.6 235.6 5"])
    assert trace.log is not None
    assert [one.wrong for one in trace.log.measured] == [5]


def table(*busbw: float, hosts: int = 2) -> list[str]:
    """The output of nccl-tests on payloads that double from 512 MiB."""
    lines = nccl_tests(busbw[0], hosts)
    at = next(number for number, line in enumerate(lines) if str(GIB16) in line)
    row = "{:>12} {:>13}     float     sum      -1   5000.0   10.00 {:>7.2f}      0"
    rows = [row.format(2**number << 29, 2**number << 27, rate) for number, rate in enumerate(busbw)]
    return [*lines[:at], *rows, *lines[at + 1 :]]


def test_bandwidth_that_falls_with_the_payload_is_a_problem():
    (finding,) = findings(SlowBenchmark(), table(7.82, 8.43, 4.59, 0.97, 1.2))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.summary == (
        "all_reduce of 1.00 GiB over 16 ranks on gpu-0 and gpu-1 reaches a bus bandwidth of "
        "8.43 GB/s, but 4.00 GiB only 970 MB/s."
    )
    (of_many,) = findings(SlowBenchmark(), table(7.82, 8.43, 0.97, hosts=3))
    assert "over 24 ranks reaches" in of_many.summary
    (steady,) = findings(SlowBenchmark(), table(7.82, 8.43, 4.59))
    assert steady.status is Status.INFO


@pytest.mark.parametrize(
    ("hosts", "where"),
    [(1, "on pairs of devices"), (2, "on each host with a third one"), (3, "on pairs of hosts")],
)
def test_the_next_run_is_on_fewer_hosts(hosts, where):
    found = findings(SlowBenchmark(), table(7.82, 8.43, 0.97, hosts=hosts))
    (falling,) = (one for one in found if "falls" in one.problem)
    assert falling.fix == f"Run it {where}, to find the slow one"
    assert ("adapters" in falling.action) == (hosts > 1)
    wrong, *_ = findings(SlowBenchmark(), nccl_tests(WHOLE, hosts, wrong=3))
    assert wrong.fix == f"Run it {'on each host, then ' * (hosts > 1)}{where}"


def test_a_further_table_in_the_log_is_not_compared():
    (finding,) = findings(SlowBenchmark(), [*table(9.0, 9.1), *table(0.9, 0.9, 0.9)])
    assert finding.status is Status.INFO


@pytest.mark.parametrize(
    ("lib", "what", "meaning"),
    [
        ("NCCL", "remote process exited or there was a network error / ", "lost the connection"),
        ("CUDA", "no CUDA-capable device is detected", "a CUDA call failed"),
    ],
)
def test_a_benchmark_that_failed_before_its_first_row_is_no_healthy_one(lib, what, meaning):
    lines = [
        *nccl_tests(WHOLE, 2)[:18],
        f"gpu-1: Test {lib} failure common.cu:1279 '{what}'",
        " .. gpu-1 pid 9008: Test failure common.cu:1100",
    ]
    (finding,) = findings(NcclWarning(), lines)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert f"{lib} error: {what.removesuffix(' / ')} (nccl-tests on gpu-1)" in finding.summary
    assert meaning in finding.problem


def test_without_a_table_there_is_nothing_to_judge():
    lines = make.run(["    17179869184    4294967296     float     sum      -1   1.0 2.0 3.0 0"])
    (finding,) = findings(SlowBenchmark(), lines)
    assert finding.status is Status.NOT_APPLICABLE
    (finding,) = judged(SlowBenchmark(), rank_trace(0))
    assert finding.status is Status.NOT_APPLICABLE
