"""Findings in a few words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dsprof.findings.brief import fix, imperative, line, problem, saving, settings
from dsprof.findings.finding import Finding, Status


def finding(**fields: Any) -> Finding:
    return Finding(rule="r", title="t", status=Status.FAIL, summary="s", **fields)


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"zero_optimization": {"overlap_comm": True}}, "Set `overlap_comm` to true"),
        ({"bf16": {"enabled": False}}, "Set `bf16.enabled` to false"),
        (
            {"zero_optimization": {"reduce_bucket_size": 50_000_000, "stage": 1}},
            "Set `reduce_bucket_size` to 5e7 and `stage` to 1",
        ),
        (
            {"a": 524_288, "b": 12_500_000, "c": None},
            "Set `a` to 524,288, `b` to 12,500,000 and `c` to null",
        ),
        ({"communication_data_type": "bf16"}, "Set `communication_data_type` to bf16"),
    ],
)
def test_a_patch_as_an_imperative(patch: dict[str, Any], words: str) -> None:
    assert imperative(patch) == words


def test_settings_are_dotted_outside_zero_optimization() -> None:
    patch = {
        "zero_optimization": {"offload_param": {"pin_memory": True}},
        "fp16": {"enabled": True},
    }
    assert settings(patch) == {"offload_param.pin_memory": True, "fp16.enabled": True}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"saving_ms_per_step": (30.0, 48.4)}, "30\u201348 ms per step"),
        ({"saving_ms_per_step": (2.0, 2.0)}, "2.0 ms per step"),
        ({"saving_ms_per_step": (0.0, 5.4)}, "up to 5.4 ms per step"),
        (
            {"saving_ms_per_step": (6.9, 11.1), "saving_share": (0.075, 0.12)},
            "6.9\u201311 ms per step, 7.5\u201312 %",
        ),
        ({"saving_ms_per_step": (12_000.0, 20_400.0)}, "12\u201320 s per step"),
        ({"saving_ms_per_step": (7_000.0, 9_999.6)}, "7.0\u201310 s per step"),
        (
            {"saving_ms_per_step": (0.02, 0.04), "saving_share": (0.00008, 0.00015)},
            "< 0.1 ms per step, < 0.1 %",
        ),
        ({"saving_ms_per_step": (9.96, 9.97)}, "10 ms per step"),
        ({"saving_ms_per_step": (0.0, 0.0)}, "0.0 ms per step"),
        ({"saving_bytes_per_step": 2**21}, "2.00 MiB per step"),
        ({"saving_bytes_per_step": 0}, ""),
        ({}, ""),
    ],
)
def test_a_saving_is_no_more_exact_than_it_is(fields: dict[str, Any], words: str) -> None:
    assert saving(finding(**fields)) == words


def test_what_to_do_is_what_the_rule_says_else_its_patch_else_its_first_sentence() -> None:
    action = "Use ZeRO-1 instead. It reduces once."
    assert fix(finding(action=action)) == "Use ZeRO-1 instead"
    assert fix(finding(action=action, config_patch={"stage": 1})) == "Set `stage` to 1"
    assert fix(finding(action=action, config_patch={"stage": 1}, fix="Do it")) == "Do it"
    assert fix(finding()) == ""


def test_the_problem_is_what_the_rule_says_else_a_short_summary_else_the_title() -> None:
    assert problem(finding(problem="Slow")) == "Slow"
    short = Finding(rule="r", title="t", status=Status.FAIL, summary="64 calls. One a layer.")
    assert problem(short) == "64 calls"
    assert problem(msgspec.structs.replace(short, summary="x" * 101)) == "t"


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ("flops_profiler.enabled: switches wall_clock_breakdown on for all steps, not only one.",
         "t"),
        ("1.51 GiB of 6.03 GiB reserved on rank 0 (25 %) are stuck in partly used segments.", "t"),
        ("64 calls (one a layer) are small; their median is 4 KiB, in each step.",
         "64 calls (one a layer) are small"),
        ("Rank 3 delays every step by 41 ms (18 %): last in 9 of 10 steps.",
         "Rank 3 delays every step by 41 ms (18 %)"),
        ("Rank 3 delays every one of the 200 steps by 41 ms (18 %): last in 9 of 10.",
         "Rank 3 delays every one of the 200 steps by 41 ms (18 %)"),
        ("Rank 3 delays every one of all 2,000 steps by 41.5 ms (18 %, mean of all steps).",
         "Rank 3 delays every one of all 2,000 steps by 41.5 ms"),
    ],
)  # fmt: skip
def test_a_problem_has_a_verb(summary: str, words: str) -> None:
    found = Finding(rule="r", title="t", status=Status.FAIL, summary=summary)
    assert problem(found) == words


def test_what_to_do_ends_at_a_parenthesis() -> None:
    action = (
        "Take the stack of each such rank (py-spy dump --native) before the next run times out."
    )
    assert fix(finding(action=action)) == "Take the stack of each such rank"


def test_a_line_has_problem_fix_and_saving_as_far_as_they_are_known() -> None:
    assert line(finding(problem="Prefetching is off")) == "Prefetching is off."
    assert line(finding(problem="Slow", fix="Do it")) == "Slow. Do it."
    assert line(finding(problem="Is it slow?", fix="Do it")) == "Is it slow? Do it."
    saved = finding(problem="Slow", fix="Do it", saving_ms_per_step=(2.0, 3.0))
    assert line(saved) == "Slow. Do it: saves 2.0\u20133.0 ms per step."
