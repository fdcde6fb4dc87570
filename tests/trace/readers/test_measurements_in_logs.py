"""What DeepSpeed's comms logger and timers print."""

from __future__ import annotations

import pytest

from tests.factories import logs as make


def test_comms_logger_lines_of_a_release_that_adds_up_its_times():
    info = "[INFO] [utils.py:1:f] [Rank 0] DeepSpeed info: version=0.19.8, git-hash=unknown"
    lines = [make.call("all_reduce", ms) for ms in (2, 5, 9)]
    log = make.log_of([info, *lines])
    (calls,) = log.calls.values()
    assert (calls.calls, calls.total_ns, calls.world_size) == (3, 9_000_000, 4)
    assert "sums of all times" in log.comms_logger
    (calls,) = make.log_of([info.replace("0.19.8", "0.17.6"), *lines]).calls.values()
    assert calls.total_ns == 16_000_000


def test_times_that_only_rise_are_sums_whatever_the_release():
    rising = make.log_of([make.call("all_reduce", ms) for ms in range(1, 11)])
    assert next(iter(rising.calls.values())).total_ns == 10_000_000
    mixed = make.log_of([make.call("all_reduce", ms) for ms in (1, 3, 2, 4, 5, 6, 7, 8, 9)])
    assert next(iter(mixed.calls.values())).total_ns == 45_000_000


def test_the_summary_of_comms_logger():
    rows = [("2.0 KB", 146, 11.12, 0.08, 0.43, 0.41), ("98.25 MB", 1, 8317.12, 8317.12, 0.2, 0.19)]
    lines = [*make.table("broadcast | [Caller Func: init]", *rows), "loss 3.2"]
    log = make.log_of(lines)
    assert {kind: calls.total_ns for kind, calls in log.calls.items()} == {
        ("broadcast", "init", 2048): 11_120_000,
        ("broadcast", "init", 103_022_592): 8_317_120_000,
    }
    version = "[INFO] [utils.py:1:f] [Rank 0] DeepSpeed info: version=0.18.9, git-hash=unknown"
    sums = make.log_of([version, *lines]).calls.values()
    assert [(calls.calls, calls.total_ns) for calls in sums] == [(146, None), (1, None)]


def test_a_summary_counts_no_call_again_that_lines_told():
    lines = [make.call("all_reduce", ms) for ms in (9, 2, 5)]
    (kind,) = make.log_of(lines).calls
    rows = [("1.0 MB", 3, 16.0, 5.33, 0.43, 0.41)]
    log = make.log_of([*lines, *make.table("all_reduce", *rows)])
    (told,) = (calls for key, calls in log.calls.items() if key[0] == kind[0])
    assert (told.calls, told.total_ns, told.source) == (3, 16_000_000, "summary")


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
