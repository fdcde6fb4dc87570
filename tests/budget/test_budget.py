"""The budget: what its file may say, and which limits a run breaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dsprof.diagnosis.budget.judge import broken, unjudged
from dsprof.diagnosis.budget.limits import Budget, load_budget
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.steps import DeviceRow
from dsprof.errors import ConfigError
from dsprof.findings.finding import Finding, Severity, Status
from tests.factories import diagnosis as factory

RULES = (
    *("late-rank", "low-comm-overlap", "stuck-collective"),
    *("data-quality", "device-out-of-memory"),
)

Load = Callable[[str], Budget]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str) -> Budget:
        path = tmp_path / "budget.yaml"
        path.write_text(text)
        return load_budget(path, RULES)

    return load


def mistakes(load: Load, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return [line.partition("budget.yaml:")[2] for line in str(caught.value).splitlines()]


def finding(rule: str, status: Status = Status.FAIL, severity: str = "high") -> Finding:
    return Finding(rule=rule, title="", status=status, severity=Severity(severity), summary="why")


def run(**changes: Any) -> Diagnosis:
    """Two ranks, 8 of 10 steps measured: a rank's has 8.125 calls."""
    return factory.diagnosis(2, 10, **{"findings": [], **changes})


def exposed(share: float | None) -> Diagnosis:
    made = run()
    return msgspec.structs.replace(
        made, steps=msgspec.structs.replace(made.steps, exposed_share=share)
    )


def lines(budget: Budget, made: Diagnosis) -> list[str]:
    return [line.rpartition("budget.yaml:")[2] for line in broken(budget, made)]


def test_a_run_within_its_budget_breaks_nothing(load: Load) -> None:
    calls = sum(row.calls for row in run().communication) / 16
    nbytes = sum(row.bytes for row in run().communication) / 16
    text = f"bytes_per_step: {nbytes}\noperations_per_step: {calls}\n"
    assert broken(load(text), run()) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("bytes_per_step: 1e6", "1:17: bytes_per_step is 89,785,685, more than 1,000,000"),
        ("\n\noperations_per_step: 8", "3:22: operations_per_step is 8.125, more than 8"),
    ],
)
def test_each_broken_limit_is_a_line_with_its_place(load: Load, text: str, line: str) -> None:
    assert lines(load(text), run()) == [line]


def test_a_share_is_no_percentage(load: Load) -> None:
    with pytest.raises(ConfigError, match="'exposed_share' must be at most 1, got 30"):
        load("exposed_share: 30")


def test_the_exposed_share_is_that_of_the_report(load: Load) -> None:
    budget = load("exposed_share: 0.25")
    assert lines(budget, exposed(0.25)) == []
    assert lines(budget, exposed(0.251)) == ["1:16: exposed_share is 0.251, more than 0.25"]


def test_findings_of_a_severity_or_a_graver_one_are_counted(load: Load) -> None:
    budget = load("findings: {critical: 0, high: 1, low: 3}")
    failing = [finding("a"), finding("b", severity="critical"), finding("c", severity="low")]
    told = [finding("d", Status.INFO), finding("e", Status.PASS)]
    assert lines(budget, run(findings=[*failing, *told])) == [
        "1:22: findings critical: 1, more than 0: b",
        "1:31: findings high or higher: 2, more than 1: a, b",
    ]
    assert lines(load("findings: {critical: 1, high: null}"), run(findings=failing)) == []


def test_an_unknown_verdict_breaks_a_budget_that_lists_what_may_be_unknown(load: Load) -> None:
    made = run(findings=[finding("late-rank", Status.UNKNOWN), finding("broke", Status.ERROR)])
    assert broken(load("findings: {high: 1}\nmay_be_unknown: [low-comm-overlap]"), made) == [
        "late-rank could not be judged (Why).",
        "broke could not be judged (Why).",
        "To allow these, write: may_be_unknown: [low-comm-overlap, late-rank, broke]",
    ]
    assert len(broken(load("findings: {high: 1}\nmay_be_unknown: []"), made)) == 3
    allowed = load("may_be_unknown: [late-rank]\n")
    assert broken(allowed, made) == [
        "broke could not be judged (Why). To allow this, add it to may_be_unknown."
    ]


@pytest.mark.parametrize("more", ["", "exposed_share: 1\nmay_be_unknown: [exposed_share]"])
def test_else_an_unknown_verdict_is_named_and_breaks_nothing(load: Load, more: str) -> None:
    made = run(findings=[finding("late-rank", Status.UNKNOWN)])
    budget = load(f"findings: {{high: 0}}\n{more}")
    assert broken(budget, made) == []
    assert unjudged(budget, made) == ["late-rank"]
    assert unjudged(load("bytes_per_step: 1"), made) == []


def test_a_recording_without_steps_does_not_pass_for_its_few_findings(load: Load) -> None:
    empty = factory.empty()
    empty.quality = msgspec.structs.replace(empty.quality, is_recorded=True)
    [line] = lines(load("findings: {high: 0}"), empty)
    assert line.startswith("1:18: findings could not be judged: no step was measured.")
    empty.quality = msgspec.structs.replace(empty.quality, is_recorded=False)
    assert broken(load("findings: {high: 0}"), empty) == []


def test_a_budget_of_figures_asks_for_no_verdict(load: Load) -> None:
    made = run(findings=[finding("late-rank", Status.UNKNOWN), finding("broke", Status.ERROR)])
    assert broken(load("operations_per_step: 1e12"), made) == []


def test_why_a_rule_could_not_judge_is_said_once(load: Load) -> None:
    why = "Unknown: no clocks."
    late = msgspec.structs.replace(finding("late-rank", Status.UNKNOWN), summary=why)
    [line] = broken(load("findings: {high: 1}\nmay_be_unknown: []"), run(findings=[late]))
    assert line.startswith("late-rank could not be judged (No clocks). To allow this")


def test_a_limit_on_what_was_not_measured_is_broken_unless_allowed(load: Load) -> None:
    text = "bytes_per_step: 1e12\noperations_per_step: 1e12\nexposed_share: 1\n"
    said = broken(load(text), factory.empty())
    assert said[-1].endswith("[bytes_per_step, operations_per_step, exposed_share]")
    assert all("could not be measured" in line for line in said[:-1])
    allowed = "may_be_unknown:\n- bytes_per_step\n- operations_per_step\n- exposed_share\n"
    assert broken(load(text + allowed), factory.empty()) == []


def test_bytes_of_unknown_size_are_not_none(load: Load) -> None:
    made = run()
    made.communication[0].size_class = "not known"
    assert "could not be measured" in lines(load("bytes_per_step: 1e12"), made)[0]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("byte_per_step: 1", "1:1: unknown key 'byte_per_step' - did you mean 'bytes_per_step'?"),
        ("finding: {high: 0}", "1:1: unknown key 'finding' - did you mean 'findings'?"),
        ("may_be_unknwn: []", "1:1: unknown key 'may_be_unknwn' - did you mean 'may_be_unknown'?"),
        (
            "findings:\n  hihg: 0",
            "2:3: unknown key under 'findings': 'hihg' - did you mean 'high'?",
        ),
        ("findings: [high]", "1:11: 'findings' must be a mapping"),
        ("findings: {high: -1}", "1:18: 'high' must be at least 0, got -1"),
        ("findings: {high: 0.5}", "1:18: 'high' must be a whole number in plain digits or null"),
        (
            "exposed_share: many",
            "1:16: 'exposed_share' must be a finite number or null, got other text",
        ),
        ("exposed_share: .nan", "1:16: 'exposed_share' must be a finite number or null, got .nan"),
        (
            "bytes_per_step: -.inf",
            "1:17: 'bytes_per_step' must be a finite number or null, got -.inf",
        ),
        ("may_be_unknown: late-rank", "1:17: 'may_be_unknown' must be a list"),
        (
            "may_be_unknown:\n- late-rank\n- late-rnak",
            "3:3: unknown name in 'may_be_unknown' 'late-rnak' - did you mean 'late-rank'?",
        ),
        ("may_be_unknown: [[a]]", "1:18: unknown name in 'may_be_unknown' 'tag:yaml.org"),
        ("exposed_share: [", "1:17: not YAML: "),
    ],
)
def test_mistakes_are_named_at_their_place(load: Load, text: str, mistake: str) -> None:
    (found,) = mistakes(load, text)
    assert found.startswith(mistake)


def test_all_mistakes_are_named_at_once(load: Load) -> None:
    assert len(mistakes(load, "a: 1\nexposed_share: x\nfindings: {b: 1}\n")) == 3


@pytest.mark.parametrize(
    "text",
    ["", "# nothing\n", "findings:\n", "exposed_share: null", "may_be_unknown: [exposed_share]"],
)
def test_a_budget_without_a_limit_is_a_mistake(load: Load, text: str) -> None:
    with pytest.raises(ConfigError, match=r"no limit given; possible limits: .*, findings"):
        load(text)


def test_a_budget_may_ask_for_verdicts_only(load: Load) -> None:
    [line] = lines(load("may_be_unknown: []"), run(findings=[finding("late-rank", Status.UNKNOWN)]))
    assert line.startswith("late-rank could not be judged")


def test_a_run_that_goes_on_holds_no_budget(load: Load) -> None:
    going = run(findings=[])
    going.run = msgspec.structs.replace(going.run, is_running=True)
    [line] = lines(load("bytes_per_step: 1e12\n"), going)
    assert line.startswith("the run goes on")
    assert lines(load("bytes_per_step: 1e12\nmay_be_unknown: [data-quality]\n"), going) == []


@pytest.mark.parametrize("rule", ["stuck-collective", "mismatched-collective"])
def test_a_run_that_hung_holds_no_budget(load: Load, rule: str) -> None:
    hung = run(findings=[finding(rule, severity="critical")])
    [line] = lines(load("bytes_per_step: 1e12\n"), hung)
    assert line.startswith(f"{rule}: the run hung, crashed or was killed")
    assert lines(load("bytes_per_step: 1e12\nmay_be_unknown: [stuck-collective]\n"), hung) == (
        [] if rule == "stuck-collective" else [line]
    )


@pytest.mark.parametrize(
    "ends", [{"unclean_ranks": [1]}, {"exceptions": {"ValueError": [0]}}], ids=["killed", "raised"]
)
def test_a_run_that_was_killed_or_failed_holds_no_budget(load: Load, ends: dict[str, Any]) -> None:
    killed = run(findings=[finding("data-quality")])
    killed.quality = msgspec.structs.replace(killed.quality, **ends)
    [line] = lines(load("bytes_per_step: 1e12\n"), killed)
    assert line.startswith("data-quality: the run hung, crashed or was killed")
    killed.quality = msgspec.structs.replace(killed.quality, is_recorded=False)
    assert lines(load("bytes_per_step: 1e12\n"), killed) == []


def test_a_run_that_ended_out_of_memory_is_told_by_its_rule(load: Load) -> None:
    made = run(findings=[finding("device-out-of-memory")])
    made.quality = msgspec.structs.replace(made.quality, exceptions={"torch.OutOfMemoryError": [0]})
    [line] = lines(load("bytes_per_step: 1e12\n"), made)
    assert line.startswith("device-out-of-memory: the run hung, crashed or was killed")
    assert line.endswith("may_be_unknown: why")
    allowed = "bytes_per_step: 1e12\nmay_be_unknown: [device-out-of-memory]\n"
    assert lines(load(allowed), made) == []


@pytest.mark.parametrize("gap", ["dropped_events", "broken_lines"])
def test_sums_that_lack_a_part_hold_no_limit(load: Load, gap: str) -> None:
    made = run()
    made.quality = msgspec.structs.replace(made.quality, **{gap: 2})
    text = "operations_per_step: 100\n"
    [line] = lines(load(text), made)
    assert line.startswith("1:22: operations_per_step could not be measured: the record ")
    [line] = lines(load("operations_per_step: 5\n"), made)
    assert line.endswith("operations_per_step is 8.125, more than 5")
    assert lines(load(f"{text}may_be_unknown: [operations_per_step]\n"), made) == []


def test_sums_of_a_sample_hold_no_limit(load: Load) -> None:
    made = run()
    numbers = {one.name: 0 for one in msgspec.structs.fields(DeviceRow) if one.required}
    made.devices = [DeviceRow(**numbers, is_sampled=True)]
    [line] = lines(load("bytes_per_step: 1e12\n"), made)
    assert "could not be measured: the files hold only a sample" in line
