from __future__ import annotations

from dsprof.findings.finding import Severity, Status
from dsprof.rules.overlap.host_synchronisation import HostSynchronisation
from tests.factories import kineto
from tests.factories.device import rank as device_profile
from tests.factories.device_run import device_rank, synchronisations
from tests.factories.trace import assert_reached_at, engine, header, said, zero_rank

RULE = HostSynchronisation()


def rank(count: int = 3, idle_ms: float = 2.5, **fields):
    return device_rank(stalls=synchronisations(count, idle_ms), **fields)


def test_stops_in_each_step_fail():
    finding = said(RULE, rank())
    assert finding.status is Status.FAIL
    assert "waits for the device 3 times per step" in finding.summary
    assert "These waits leave the device idle for up to 7.50 ms per step (7.5 %)" in finding.summary
    assert finding.config_patch is None
    assert finding.problem == "The host's waits leave the device idle: up to 7.5 % of the step"
    assert finding.fix == "Call `.item()` only every N steps"
    assert [one.label for one in finding.evidence[0].columns[3:]] == [
        "calls per step and rank",
        "blocked per step and rank",
    ]
    assert finding.evidence[0].rows == (("synchronize()", "", "", 3.0, 7.5),)


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, rank(), calls_per_step=3.0, idle_share=0.075, severe_share=0.0375)


def test_timers_of_deepspeed_are_named_with_a_patch():
    config = engine()
    config.effective["wall_clock_breakdown"] = True
    finding = said(RULE, rank(engine=config))
    assert finding.config_patch == {"wall_clock_breakdown": False}
    assert "its timers synchronise" in finding.cause
    assert finding.fix == "Set `wall_clock_breakdown` to false"
    assert finding.action.startswith('Set "wall_clock_breakdown" to false')


def test_few_or_cheap_stops_pass():
    assert said(RULE, rank(count=1, idle_ms=9)).status is Status.PASS
    assert said(RULE, rank(idle_ms=0.1)).status is Status.PASS
    none = said(RULE, rank(count=0))
    assert (none.status, none.summary) == (Status.PASS, "The host never waits for the device.")


def test_without_times_of_a_device_it_does_not_apply():
    assert said(RULE, zero_rank()).status is Status.NOT_APPLICABLE
    untimed = zero_rank(head=header(device="cuda", backend="nccl"))
    assert said(RULE, untimed).status is Status.NOT_APPLICABLE


def reading(gap: float = 20, steps: int = 4):
    """Steps of 100 ms in which `.item()` is called three times and leaves gaps."""
    events = []
    for number in range(steps):
        at = 100 * number
        events += [kineto.step(number, at, 100), kineto.kernel("gemm", at, 30)]
        events.append(kineto.kernel("gemm", at + 30 + gap, 65 - gap))
        for i in range(3):
            events.append(kineto.span("cpu_op", "aten::item", at + 20 + 5 * i, 4))
            inner = kineto.span("cuda_runtime", "cudaStreamSynchronize", at + 21 + 5 * i, 2)
            events.append(inner)
    return device_profile(events, world_size=1)


def test_a_profile_shows_item():
    finding = said(RULE, reading())
    assert finding.status is Status.FAIL
    assert "waits for the device 3 times per step" in finding.summary
    # The gap is 20 ms long; a host that did not wait would be ahead by what it waited.
    assert "without a kernel for up to 6.00 ms per step (6 %)" in finding.summary
    assert finding.problem.endswith("without a kernel: up to 6 % of the step")  # copies may run
    assert finding.evidence[0].rows == (("cudaStreamSynchronize", "aten::item", "", 3.0, 6.0),)
    assert "cudaStreamSynchronize in aten::item blocks longest" in finding.summary
    assert said(RULE, reading(gap=0)).status is Status.PASS


def test_the_calls_that_block_longest_are_listed():
    events = [kineto.step(number, 100 * number, 100) for number in range(4)]
    for number in range(4):
        events += [
            kineto.kernel("gemm", 100 * number, 5),
            kineto.kernel("gemm", 100 * number + 90, 5),
        ]
        for i in range(20):
            at = 100 * number + 4 * i + 5
            events.append(kineto.span("cpu_op", f"aten::op{i}", at, 3.5))
            events.append(kineto.span("cuda_runtime", "cudaStreamSynchronize", at, 1 + i / 10))
    rows = said(RULE, device_profile(events, world_size=1)).evidence[0].rows
    assert [row[1] for row in rows] == [f"aten::op{i}" for i in range(19, 3, -1)]
    assert rows[0][3:] == (1.0, 2.9)


def test_without_marked_steps_the_record_is_judged():
    events = [kineto.kernel("gemm", 0, 10), kineto.kernel("gemm", 90, 10)]
    events.append(kineto.span("cuda_runtime", "cudaStreamSynchronize", 5, 70))
    finding = said(RULE, device_profile(events, world_size=1))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "1 time, 70.0 ms in total" in finding.summary
    assert "70 % of the recorded time" in finding.summary
    assert finding.confidence == "low"
    short = [*events[:2], kineto.span("cuda_runtime", "cudaStreamSynchronize", 5, 1)]
    assert said(RULE, device_profile(short, world_size=1)).status is Status.PASS


def test_a_single_step_is_judged_without_confidence():
    finding = said(RULE, reading(steps=1))
    assert finding.status is Status.FAIL
    assert finding.confidence == "low"


def copying(name: str = "cudaMemcpyAsync"):
    """Four steps of 100 ms, with one copy each that blocks the host for 60 ms."""
    events = []
    for number in range(4):
        at = 100 * number
        events += [kineto.step(number, at, 100), kineto.kernel("gemm", at, 40)]
        events += [kineto.span("user_annotation", "log", at + 35, 65), kineto.copy(at + 99, 1)]
        events.append(kineto.span("cpu_op", "aten::to", at + 39, 61))
        events.append(kineto.span("cuda_runtime", name, at + 40, 60))
    return device_profile(events, world_size=1)


def test_one_copy_that_blocks_for_half_a_step_fails():
    for name in ("cudaMemcpyAsync", "hipMemcpyWithStream"):
        finding = said(RULE, copying(name))
        assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
        assert f"{name} in aten::to, under log blocks longest" in finding.summary
        assert "60.0 ms in total" in finding.summary
        assert "without a kernel for" in finding.summary  # copies do
