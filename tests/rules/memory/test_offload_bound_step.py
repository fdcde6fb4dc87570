from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.memory.offload_bound_step import OffloadBoundStep
from tests.factories.trace import assert_reached_at, copy, header, said, zero_rank

RULE = OffloadBoundStep()

UNPINNED = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}
CUDA = header(device="cuda", backend="nccl")


def rank(took_ms: float = 30, zero=None, **fields):
    copies = [copy(100 * n + 40, took_ms, step=n, phase="step") for n in range(6) if took_ms]
    return zero_rank(copies=copies, zero=zero or {"offload_optimizer": {"device": "cpu"}}, **fields)


def test_memory_that_is_not_pinned_fails_with_a_patch():
    finding = said(RULE, rank(zero=UNPINNED, head=CUDA))
    assert finding.status is Status.FAIL
    assert "30.0 ms per step (30 %)" in finding.summary
    assert finding.config_patch == {
        "zero_optimization": {"offload_optimizer": {"pin_memory": True}}
    }
    assert finding.evidence[0].rows == (("gradient", "to host", "step", 1.0, 1 << 20, 30.0),)


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, rank(zero=UNPINNED, head=CUDA), copied_share=0.3)


@pytest.mark.parametrize("fields", [{"head": CUDA}, {"zero": UNPINNED}])
def test_pinned_memory_and_a_cpu_are_information(fields):
    finding = said(RULE, rank(**fields))
    assert finding.status is Status.INFO
    assert finding.config_patch is None


def test_short_copies_pass():
    assert said(RULE, rank(took_ms=5, zero=UNPINNED, head=CUDA)).status is Status.PASS


def test_nothing_offloaded_is_not_applicable():
    assert said(RULE, zero_rank()).status is Status.NOT_APPLICABLE
    assert said(RULE, zero_rank(zero={"offload_optimizer": None})).status is Status.NOT_APPLICABLE
    off = {"offload_optimizer": {"device": "none"}}
    assert said(RULE, zero_rank(zero=off)).status is Status.NOT_APPLICABLE


def test_offloading_without_a_copy_is_unknown():
    assert said(RULE, rank(took_ms=0)).status is Status.UNKNOWN


def test_the_share_is_a_threshold():
    assert said(RULE, rank(zero=UNPINNED, head=CUDA), copied_share=0.5).status is Status.PASS


def test_copies_are_listed_by_what_they_take():
    trace = rank(zero=UNPINNED, head=CUDA)
    trace.copies += [
        copy(100 * n + 80, 10, step=n, what="gradients", phase="backward", nbytes=3 << 20)
        for n in range(6)
        for _ in range(2)
    ]
    (table,) = said(RULE, trace).evidence
    longest, other = table.rows
    assert longest[2:4] == ("step", 1)
    assert longest[5] == pytest.approx(30)
    assert other[0] == "gradients"
    assert other[2:5] == ("backward", 2, 6 << 20)
    assert other[5] == pytest.approx(20)
