from __future__ import annotations

import pytest

from dsprof.files.redaction.known_settings import written_config
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.rules.memory.memory_growth import MemoryGrowth
from dsprof.rules.runner import judge
from dsprof.rules.steps.throughput_drop import ThroughputDrop
from dsprof.trace.device_counters import ALLOCATED
from dsprof.trace.schema import EngineConfig
from tests.factories import logs as make
from tests.factories.memory import on_device
from tests.factories.trace import assert_reached_at, judged, rank_trace, summary

MEMORY_GROWTH = MemoryGrowth()
RULE = ThroughputDrop()

FALLING = [50.0, *(200.0 - 3 * i for i in range(20))]


def reports(rates: list[float], gib: list[float] | None = None) -> list[str]:
    """What DeepSpeed's timer prints every ten steps."""
    memory = gib or [4.0] * len(rates)
    return [
        "[2026-01-01 00:00:00,000] [INFO] [timer.py:264:stop] epoch=0/micro_step=1/"
        f"global_step={10 + 10 * i}, RunningAvgSamplesPerSec=200.0, CurrSamplesPerSec={rate}, "
        f"MemAllocated={round(one, 2)}GB, MaxMemAllocated=60.0GB"
        for i, (rate, one) in enumerate(zip(rates, memory, strict=True))
    ]


def findings(lines: list[str]) -> list[Finding]:
    return judged(RULE, *make.read(lines))


def test_throughput_that_drops():
    (finding,) = findings(reports(FALLING))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "196 samples/s at the start, 148 at the end: 25 % fewer" in finding.summary
    assert "DSPROF=1" in finding.action


@pytest.mark.parametrize(
    "block",
    [
        {"curriculum_learning": {"enabled": True}},
        {"data_efficiency": {"data_routing": {"random_ltd": {"enabled": True}}}},
    ],
)
def test_a_schedule_that_lengthens_inputs_makes_a_drop_information(block):
    shown = written_config(block)  # what a trace or a report keeps of it
    lines = reports(FALLING)
    (trace,) = make.read(lines)
    trace.engines = {1: EngineConfig(1, shown, effective=shown)}
    (finding,) = judged(RULE, trace)
    assert (finding.status, "25 % fewer" in finding.summary) == (Status.INFO, True)
    off = {"curriculum_learning": {"enabled": False}}
    trace.engines = {1: EngineConfig(1, off, effective=off)}
    assert judged(RULE, trace)[0].status is Status.FAIL


def test_a_sample_of_the_reports_is_shown():
    rates = [50.0, *(200.126 - 2 * i for i in range(64))]
    rows = findings(reports(rates))[0].evidence[0].rows
    assert [row[0] for row in rows] == list(range(20, 660, 20))
    assert rows[:2] == ((20, 200.13, 4.0), (40, 196.13, 4.0))


def test_the_timer_of_earlier_releases():
    lines = [line.replace("epoch=0/micro_step=1/global_step=", "0/") for line in reports(FALLING)]
    assert findings(lines) == findings(reports(FALLING))


def test_reports_of_several_engines_are_not_told_apart():
    both = zip(reports(FALLING), reports([90.0] * len(FALLING)), strict=True)
    (finding,) = findings([line for pair in both for line in pair])
    assert (finding.status, "several engines" in finding.summary) == (Status.UNKNOWN, True)


def test_a_line_that_is_printed_twice_is_one_report():
    twice = [line for line in reports(FALLING) for _ in range(2)]
    assert findings(twice) == findings(reports(FALLING))


def test_a_run_that_starts_again_may_repeat_a_step():
    assert findings(reports([100.0]) + reports(FALLING)) == findings(reports(FALLING))


def test_one_report_is_too_few():
    assert findings(reports([200.0]))[0].status is Status.UNKNOWN
    assert findings(make.run())[0].status is Status.NOT_APPLICABLE


def test_memory_that_was_not_reported_is_not_zero():
    lines = [line.split(", MemAllocated")[0] for line in reports(FALLING)]
    (finding,) = findings(lines)
    assert finding.title == RULE.meta.failing_title
    assert {row[2] for row in finding.evidence[0].rows} == {None}


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, *make.read(reports(FALLING)), reports=20, drop=1 - 147.5 / 195.5)
    grown = make.read(reports([200.0] * 21, [10.0 + 0.25 * i for i in range(21)]))
    assert_reached_at(RULE, *grown, growth_gib=4.0)
    assert_reached_at(RULE, *grown, growth=4.0 / 10.625)


def test_a_fifth_of_the_reports_and_at_least_three_are_compared():
    twelve = [1.0, 110, 100, 170, *[140] * 6, 60, 20, 50]
    assert "110 samples/s at the start, 50 at the end" in findings(reports(twelve))[0].summary
    twenty = [1.0, 100, 130, 120, 180, *[140] * 12, 30, 70, 40, 90]
    assert "125 samples/s at the start, 55 at the end" in findings(reports(twenty))[0].summary


@pytest.mark.parametrize(
    "lines",
    [
        reports([400.0, *[200.0 + i % 3 for i in range(20)]]),  # the first is not compared
        reports([100.0, *[200.0 - 60 * (i % 2) for i in range(20)]]),  # as noisy as it drops
        reports([9.0, 100, 120, 140, 160, *[130] * 12, 112, 70, 112, 70]),  # they overlap
        reports([300.0] * 15) + reports([200.0] * 15),  # two runs in one log
        reports([0.0] * 20),
    ],
)
def test_throughput_that_does_not_drop(lines):
    (finding,) = findings(lines)
    assert finding.status is Status.PASS


def test_memory_that_grows():
    def grown(gib: list[float]) -> str:
        found = findings(reports([200.0] * 21, gib))
        (finding,) = (one for one in found if one.status is Status.FAIL)
        assert finding.title == "Allocated memory grows during the run"
        assert [row[2] for row in finding.evidence[0].rows] == gib[1:]
        return finding.summary

    linear = [10.0 + 0.2 * i for i in range(21)]
    assert "from 10.5 GiB in step 20 to 13.7 GiB in step 210" in grown(linear)
    assert "from 10.0 GiB in step 20 to 13.0 GiB" in grown([10.0 + i // 6 for i in range(21)])
    lines = reports([200.0] * 21, linear)
    lines[1] = lines[1].split(", MemAllocated")[0]
    assert [one.status for one in findings(lines)] == [Status.PASS]


def test_a_leak_that_the_counters_show_is_told_once():
    (log,) = make.read(reports([200.0] * 21, [10.0 + 0.2 * i for i in range(21)]))
    leak = on_device(*({ALLOCATED: (10 << 30) + (n << 26)} for n in range(40)))
    leak.log = log.log
    findings = judge(summary(leak), [RULE, MEMORY_GROWTH])
    (finding,) = (one for one in findings if one.status is Status.FAIL)
    assert (finding.rule, finding.facets[0].rule) == ("memory-growth", "throughput-drop")


@pytest.mark.parametrize(
    "gib",
    [
        [10.0 + min(0.4 * i, 4.0) + 0.04 * i for i in range(21)],
        [10.0 + i**0.5 for i in range(21)],
    ],
)
def test_a_cache_that_fills_up_is_no_growth(gib):
    statuses = {one.status for one in judged(RULE, *make.read(reports([200.0] * 21, gib)))}
    assert statuses == {Status.PASS}


@pytest.mark.parametrize(("falls", "grows"), [([10], True), ([10, 14], False)])
def test_memory_falls_in_one_of_ten_reports_at_most(falls, grows):
    gib = [10.0 + i - 3 * (i in falls) for i in range(21)]
    statuses = [finding.status for finding in findings(reports([200.0] * 21, gib))]
    assert (Status.FAIL in statuses) is grows


def test_few_reports_and_none():
    (finding,) = findings(reports([200.0] * 5))
    assert finding.status is Status.UNKNOWN
    assert "4 reports after the first; 12 are needed" in finding.summary
    (finding,) = findings(reports([200.0] * 9) + reports([200.0] * 7))  # of the last run
    assert "6 reports after the first; 12 are needed" in finding.summary
    (finding,) = findings(reports([200.0] * 2))
    assert "1 report after the first; 12 are needed" in finding.summary
    (finding,) = judged(RULE, rank_trace(0))
    assert finding.status is Status.NOT_APPLICABLE
