"""The order of rules: each declares its own, and it decides who owns a saving that two claim."""

from __future__ import annotations

from itertools import groupby

from dsprof.rules import RULES
from dsprof.rules.runner import _place, judge
from tests.factories.trace import rank_trace, summary

ORDER = (
    "data-quality",
    "collective-timeout",
    "device-out-of-memory",
    "network-differs-across-ranks",
    "transport-fallback",
    "nccl-warning",
    "unrecognised-kernels",
    "stuck-collective",
    "mismatched-collective",
    "slow-link",
    "late-rank",
    "low-bus-bandwidth",
    "slow-benchmark",
    "device-idle",
    "serial-streams",
    "allreduce-for-sharded-gradients",
    "reduction-every-micro-step",
    "unexplained-traffic",
    "fp32-gradients",
    "barrier-in-step",
    "scalar-collectives",
    "single-rank-groups",
    "unbatched-point-to-point",
    "small-collectives",
    "persistent-parameter-gathers",
    "tiny-parameter-gathers",
    "part-filled-buckets",
    "giant-bucket",
    "unhidden-reduction",
    "low-comm-overlap",
    "prefetch-misses",
    "host-synchronisation",
    "pipeline-bubble",
    "offload-bound-step",
    "repeated-parameter-gathers",
    "misplaced-groups",
    "inter-node-gathers",
    "communication-bound-step",
    "low-compute-share",
    "step-time-change",
    "step-time-drift",
    "periodic-slow-step",
    "throughput-drop",
    "allocator-fragmentation",
    "emptied-device-cache",
    "memory-growth",
    "host-memory-pressure",
    "uneven-device-memory",
    "oversized-bucket",
    "communication-buffer-pressure",
    "unused-device-memory",
    "comms-logger-enabled",
    "rejected-config",
    "unknown-config-key",
    "batch-size-mismatch",
    "conflicting-config-keys",
    "inert-config-key",
    "overridden-config-value",
    "deprecated-config-key",
    "unfilled-auto-value",
    "unaccelerated-precision",
    "sync-debug-variable",
    "misspelt-variable",
    "unparsable-integer-variable",
    "variable-differs-across-ranks",
    "disabled-transport",
    "forced-algorithm",
    "single-hardware-queue",
    "unknown-value",
    "incomplete-platform-profile",
    "unequal-hosts",
    "wrong-communication-library",
    "defective-release",
    "bootstrap-interface",
    "host-setting",
    "misplaced-process",
    "hidden-setting",
    "deprecated-variable",
)
"""Of the rules that were once listed by hand; a new one needs no line here."""


def known(ids: list[str]) -> list[str]:
    return [name for name in ids if name in ORDER]


def test_rules_stand_in_the_order_that_they_were_listed_in() -> None:
    assert known([rule.meta.id for rule in RULES]) == list(ORDER)


def test_no_two_built_in_rules_leave_their_order_to_chance() -> None:
    orders = [rule.meta.order for rule in RULES]
    assert len(set(orders)) == len(orders)


def test_findings_of_equal_weight_follow_that_order() -> None:
    findings = judge(summary(rank_trace()), RULES)
    for _, group in groupby(findings, _place):
        ids = known([finding.rule for finding in group])
        assert ids == sorted(ids, key=ORDER.index)
