"""No two findings of one run claim opposite things."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from dsprof.analysis.run.wait_attribution import attribution
from dsprof.analysis.summarise import summarise
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Status
from dsprof.findings.wording import percent
from dsprof.rules import RULES
from dsprof.rules.communication.communication_bound_step import CommunicationBoundStep
from dsprof.rules.overlap.low_comm_overlap import LowCommOverlap
from dsprof.rules.runner import judge
from dsprof.trace.device_counters import DEVICE_TOTAL, PEAK_RESERVED, RESERVED, RETRIES, STUCK
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import find_run
from tests.factories import device, kineto, logs
from tests.factories.device_run import device_rank
from tests.factories.memory import GIB, on_device
from tests.factories.trace import (
    engine,
    flush,
    header,
    rank_trace,
    step,
    summary,
    sync,
    zero_rank,
)
from tests.shared_data import traces


class Claim(NamedTuple):
    """What a rule says by its status; `of_ranks` if only where it names ranks."""

    rule: str
    status: Status
    of_ranks: bool = False

    def made(self, findings: Sequence[Finding]) -> bool:
        """Say whether the rule claims that."""
        return any(
            f.rule == self.rule and f.status is self.status and (f.ranks or not self.of_ranks)
            for f in findings
        )


OPPOSITES = [
    # A rank is waited for, and no rank is.
    (
        Claim("late-rank", Status.PASS),
        Claim("communication-bound-step", Status.INFO, of_ranks=True),
    ),
    # Memory is short, and memory is left.
    (Claim("unused-device-memory", Status.INFO), Claim("device-out-of-memory", Status.FAIL)),
    (Claim("unused-device-memory", Status.INFO), Claim("memory-growth", Status.FAIL)),
    # The device has nothing to do, and computes most of the time.
    (Claim("device-idle", Status.FAIL), Claim("low-compute-share", Status.PASS)),
    # Communication is hidden, and gradients or everything wait for it.
    (Claim("low-comm-overlap", Status.FAIL), Claim("unhidden-reduction", Status.PASS)),
]
"""Pairs of which at most one can be true."""

BLAMES_TRANSFER = {
    "communication-bound-step": CommunicationBoundStep.thresholds.exposed_share,
    "low-comm-overlap": LowCommOverlap.thresholds.failing_share,
}
"""Rules whose failure says that transfers are exposed, and from which share of the step on."""


def profiles(*compute_ms: float) -> list[RankTrace]:
    """Ranks whose collective begins when they have computed and ends with the step."""
    made = []
    for number, compute in enumerate(compute_ms):
        events: list[dict[str, Any]] = []
        for one in range(6):
            start = 1000.0 * one
            events += [
                kineto.step(one, start, 1000),
                kineto.kernel(kineto.GEMM, start, compute),
                kineto.collective(start + compute, 990 - compute),
            ]
        made.append(device.rank(events, number, len(compute_ms)))
    return made


def waiting(*comm_ms: float, backend: str = "nccl") -> list[RankTrace]:
    """Ranks that are held so long by the collective of each step of 100 ms."""
    count = len(comm_ms)
    return [
        zero_rank(rank, count, comm_ms=ms, head=header(rank, count, backend=backend), steps=20)
        for rank, ms in enumerate(comm_ms)
    ]


def short_of_memory() -> list[RankTrace]:
    counters = {DEVICE_TOTAL: 80 * GIB, PEAK_RESERVED: 40 * GIB, RESERVED: 40 * GIB}
    one = zero_rank(0, 1, head=header(0, 1, device="cuda", backend="nccl"))
    samples = ({**counters, STUCK: 20 * GIB, RETRIES: tried} for tried in (0, 4))
    one.memory = on_device(*samples).memory
    return [one]


def one_bucket_for_all() -> list[RankTrace]:
    """ZeRO-2 whose buffer holds many times the 64 MiB of gradients that it reduces at once."""
    config = engine(2)
    config.parameters = 32 << 20
    one = device_rank(engine=config)
    counters = {PEAK_RESERVED: 8 * GIB}
    one.memory = on_device(counters | {RETRIES: 0}, counters | {RETRIES: 3}).memory
    return [one]


def small_buckets() -> list[RankTrace]:
    """ZeRO-2 whose buckets are too small, and half empty."""
    flushes, comm = [], []
    details = {"step": 0, "nbytes": 24_000}
    for n in range(1, 41):
        full = {"elements": n % 2 * 11_000 + 1_000, "capacity": 20_000, "cause": "full"}
        flushes.append(flush(n, 2 * n, 1, **details, **full))
        comm.append(sync("all_reduce", 2 * n, 1, flush=n, **details))
    return [rank_trace(steps=[step(0, 0, 100)], flushes=flushes, comm=comm)]


MADE: dict[str, Callable[[], list[RankTrace]]] = {
    "network": lambda: profiles(500, 500),
    "late rank": lambda: profiles(500, 950),
    "late rank and network": lambda: profiles(300, 600, 300),
    "idle": lambda: [device.busy(0, 10, 5), device.busy(1, 10, 5)],
    "one of two": lambda: profiles(500, 500)[:1],
    "held alike": lambda: waiting(40, 40, 40, 40),
    "one comes late": lambda: waiting(60, 60, 60, 5),
    "half late": lambda: waiting(35, 35, 10, 10),
    "one is early": lambda: waiting(39, 24, 24, 24),
    "late over gloo": lambda: waiting(60, 60, 60, 25, backend="gloo"),
    "streams": lambda: [device_rank(rank, blocked_ms=30) for rank in (0, 1)],
    "streams, a late rank": lambda: [device_rank(0, blocked_ms=30), device_rank(1, blocked_ms=2)],
    "memory": short_of_memory,
    "memory, and one bucket": one_bucket_for_all,
    "small buckets": small_buckets,
    "no memory": lambda: logs.read(["[rank0]: " + logs.out_of_memory()]),
}
REAL = [
    "torchrec_resnet18",
    "torchrec_sst_long_a2a_optimizer",
    "torchrec_sst_long_a2a_optimizer_3",
    "torchrec_sst_long_a2a_optimizer_5_qcomm",
    "tracelens_mi300_resnet_act_checkpoint",
    "hta_trace_diff_control",
    "hta_nccl_data",
]


@pytest.mark.parametrize("name", MADE)
def test_made_runs_have_no_opposite_findings(name: str) -> None:
    assert not list(contradictions(summary(*MADE[name]())))


@pytest.mark.parametrize("name", REAL)
def test_real_runs_have_no_opposite_findings(name: str) -> None:
    assert not list(contradictions(summarise(find_run([traces(name)]))))


def test_a_contradiction_is_seen() -> None:
    run = summary(*profiles(900, 950))
    assert list(contradictions(run, {"failing_share": 0.0, "failing_overlap": 1.1}))


def contradictions(run: RunSummary, low: dict[str, float] | None = None) -> Iterator[str]:
    """Name what cannot be true at once."""
    rule = LowCommOverlap()
    given = {rule.meta.id: type(rule.thresholds)(**low)} if low else {}
    findings = judge(run, RULES, given)
    for one, other in OPPOSITES:
        if one.made(findings) and other.made(findings):
            yield f"{one} and {other}"
    yield from _patches(findings)
    yield from _causes(run, findings)


def _patches(findings: Sequence[Finding]) -> Iterator[str]:
    """One key can have one value."""
    wanted: dict[tuple[str, ...], Any] = {}
    for finding in findings:
        for key, value in _leaves(finding.config_patch or {}):
            if finding.status is Status.FAIL and wanted.setdefault(key, value) != value:
                yield f"{key}: {wanted[key]} and {value} ({finding.rule})"


def _leaves(patch: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    for key, value in patch.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _causes(run: RunSummary, findings: Sequence[Finding]) -> Iterator[str]:
    """Whoever blames transfers reads the same split as whoever blames a rank."""
    split = attribution(run)
    for rule, least in BLAMES_TRANSFER.items():
        blamed = Claim(rule, Status.FAIL).made(findings)
        if blamed and split is not None and split.transfer < least:
            yield f"{rule} blames transfers, which take {percent(split.transfer)}"
    blamed = Claim("late-rank", Status.FAIL).made(findings)
    if blamed and split is not None and split.waiting < 0.01:
        yield f"late-rank blames a rank that {percent(split.waiting)} waits for"
