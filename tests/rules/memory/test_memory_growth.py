from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.memory.memory_growth import MemoryGrowth
from dsprof.trace.device_counters import ALLOCATED, DEVICE_TOTAL, RESERVED
from dsprof.trace.rank_trace import RankTrace
from tests.factories.memory import GIB, MIB, on_device, on_host
from tests.factories.trace import assert_reached_at, header, judged, rank_trace, said

RULE = MemoryGrowth()


def device(*allocated: float, rank: int = 0):
    counters = {RESERVED: 30 * GIB, DEVICE_TOTAL: 40 * GIB}
    samples = [{ALLOCATED: int(10 * GIB + mib * MIB), **counters} for mib in allocated]
    return on_device(*samples, rank=rank)


def host(*resident: float, **fields):
    samples = [{"rss_bytes": int(GIB + mib * MIB)} for mib in resident]
    return on_host(*({"host_available_bytes": 8 * GIB, **one} for one in samples), **fields)


def leaking(step: int) -> float:
    return 8 * step + 200 * (step % 3)


def test_a_leak_on_the_device_fails_with_its_rate_and_its_end():
    finding = said(RULE, device(*map(leaking, range(42))), device(*[0] * 42, rank=1))
    assert finding.status is Status.FAIL
    assert finding.title == "Device memory grows from step to step"
    assert finding.ranks == (0,)
    assert "8.00 MiB more" in finding.summary
    assert "exhausted in 1,280 steps" in finding.summary  # 10 GiB of 8 MiB each
    ((_, first, last, growth, free),) = finding.evidence[0].rows
    assert (last - first, growth, free) == (30 * (8 << 20), 8 << 20, 10 << 30)


@pytest.mark.parametrize("begin", [52, 62])
def test_a_leak_that_begins_in_the_middle_has_its_own_rate(begin):
    series = [16 * max(0, step - begin) for step in range(102)]
    series[30] = series[53] = -28  # as noise has it
    summary = said(RULE, device(*series)).summary
    assert "uses 16.0 MiB more with each step" in summary


@pytest.mark.parametrize(
    ("series", "rate"),
    [
        ([8 * step + 20 * (2 * step % 13) for step in range(62)], "8.00 MiB"),
        ([128 * max(0, step - 16) for step in range(22)], "128 MiB"),  # in five steps
    ],
)
def test_the_rate_is_that_of_what_is_least_in_use(series, rate):
    assert f"uses {rate} more with each step" in said(RULE, device(*series)).summary


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(
        RULE,
        device(*map(leaking, range(42))),
        device(*[0] * 42, rank=1),
        steps=40,
        grown_bytes=30 * (8 << 20),
    )


def test_a_leak_on_the_host_is_told_apart():
    finding = said(RULE, host(*map(leaking, range(102))))
    assert finding.status is Status.FAIL
    assert finding.title == "Host memory grows from step to step"
    assert "exhausted in 1,024 steps" in finding.summary


def test_a_new_process_may_only_grow_to_its_usual_size():
    finding = said(RULE, host(*map(leaking, range(101))))
    assert finding.status is Status.INFO
    assert finding.action.startswith("Record 100 steps. Run once with MALLOC")


def test_few_samples_of_a_long_recording_are_of_no_new_process():
    assert said(RULE, kept(range(0, 2000, 25), lambda step: 0.5 * step)).status is Status.FAIL


def test_ranks_of_one_host_use_up_the_same_memory():
    series = [*map(leaking, range(42))]
    together = said(RULE, host(*series), host(*series, rank=1))
    assert "Rank 0 uses 8.00 MiB more with each step" in together.summary
    assert "exhausted in 512 steps" in together.summary
    elsewhere = host(*series, rank=1, head=header(1, host="other"))
    assert "exhausted in 1,024 steps" in said(RULE, host(*series), elsewhere).summary


def test_ranks_are_named_in_order_and_the_worst_first_in_the_summary():
    def growing(rank: int):
        grows = [(1 + rank) * leaking(step) for step in range(42)]
        return device(*grows, rank=rank)

    finding = said(RULE, growing(1), growing(0))
    assert finding.ranks == (0, 1)
    assert "Rank 1 uses 16.0 MiB more with each step" in finding.summary


def test_both_are_reported():
    trace = device(*map(leaking, range(42)))
    trace.memory += host(*map(leaking, range(42))).memory
    assert len(judged(RULE, trace)) == 2


@pytest.mark.parametrize(
    "series",
    [
        [0] * 42,
        [200 * (n % 3) for n in range(42)],
        [min(n, 20) * 40 for n in range(42)],  # a cache that fills up
        [0.5 * n for n in range(42)],  # little
        [900 - 8 * n for n in range(42)],
        [3000, 2000, *[0] * 40],  # warm-up
        [0, 0, *(at + 16 * n for at in (0, 240, 140, 480) for n in range(10))],
        [0] * 12 + [400] * 10 + [700] * 10 + [750] * 10,
        [0] * 12 + [400] * 20 + [400 + 10 * n for n in range(10)],
        [min(8 * n, 260) for n in range(42)],  # full where the last quarter begins
        [300 + 6 * (n - 27) if n > 26 else 0 for n in range(42)],
        [100 * n**0.5 for n in range(42)],
    ],
    ids=[
        "flat",
        "varying",
        "filling up",
        "little",
        "falling",
        "warm-up",
        "falls once",
        "slower",
        "slow again after a jump",
        "full in the last quarter",
        "slower after a jump",
        "slower in each quarter",
    ],
)
def test_what_is_no_leak_passes(series):
    assert said(RULE, device(*series)).status is Status.PASS
    assert said(RULE, host(*series)).status is Status.PASS


@pytest.mark.parametrize("trace", [rank_trace(), device(*map(leaking, range(12))), on_device(None)])
def test_few_steps_do_not_tell(trace):
    assert said(RULE, trace).status is Status.UNKNOWN


def kept(steps: Iterable[int], of_step: Callable[[int], float], rank: int = 0) -> RankTrace:
    """A rank of which a rolling recording holds only some steps."""
    trace = host(*map(of_step, steps), rank=rank)
    for number, one in zip(steps, trace.memory, strict=True):
        one.step = number
    return trace


SPARSE_THEN_DENSE = [*range(0, 1800, 50), *range(1800, 2000)]


@pytest.mark.parametrize(
    "steps", [range(2000), SPARSE_THEN_DENSE, [*range(20), *SPARSE_THEN_DENSE[1:]]]
)
def test_the_rate_is_that_of_steps_where_some_are_left_out(steps: Sequence[int]) -> None:
    finding = said(RULE, *(kept(steps, lambda step: 0.5 * step, rank) for rank in range(2)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (0, 1))
    assert "uses 512 KiB more with each step" in finding.summary


def test_a_cache_that_is_full_before_the_newest_steps_is_no_leak() -> None:
    trace = kept(SPARSE_THEN_DENSE, lambda step: min(step, 900))
    assert said(RULE, trace).status is Status.PASS


def test_a_quarter_with_few_steps_does_not_tell() -> None:
    finding = said(RULE, kept([*range(20), *range(980, 1000)], lambda step: 8 * step))
    assert finding.status is Status.UNKNOWN
    assert (
        "in a quarter of the run, memory was recorded after fewer than 5 steps" in finding.summary
    )


def test_of_many_ranks_those_that_grow_most_are_listed():
    growing = (
        device(*(leaking(n) * (1 + rank / 32) for n in range(42)), rank=rank) for rank in range(33)
    )
    rows = said(RULE, *growing).evidence[0].rows
    assert [row[0] for row in rows] == list(range(32, 0, -1))
