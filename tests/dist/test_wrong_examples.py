"""Runs that are wrong on purpose are found, and following the advice leaves a calm page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.slow_link import behind_link
from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Finding, Status
from dsprof.trace.run import find_run
from examples.wrong.cases import CASES
from examples.wrong.training import Patch, merged
from tests.dist.launch import ROOT, launch
from tests.live.replaying import assert_calm, replayed

pytestmark = [
    pytest.mark.dist,
    pytest.mark.long,
    pytest.mark.alone,  # a run beside it would make a rank late
]

LINK = behind_link()
PROGRAM = ROOT / "examples" / "wrong" / "__main__.py"
OF_THE_MACHINE = {"late-rank", "step-time-change", "step-time-drift", "periodic-slow-step"}
"""Rules that judge what else the machine does, too: they are right where it disturbs the run."""
LATE = "late-rank"
ATTEMPTS = 3


def recorded(name: str, out: Path, patch: Patch | None = None, steps: int = 30) -> Diagnosis:
    """Train with a mistake, or with what `patch` changes, and judge the record."""
    change = [] if patch is None else ["--patch", json.dumps(patch)]
    env = {**CASES[name].variables, "DSPROF": "1", "DSPROF_OUT": str(out)}
    args = [name, "--steps", steps, *change]
    launch(PROGRAM, args=args, env=env, behind=LINK, imported="compiler").check()
    return diagnose(find_run([out]))


def problems(diagnosis: Diagnosis) -> list[Finding]:
    return [one for one in diagnosis.findings if one.is_problem]


def promises(finding: Finding, diagnosis: Diagnosis) -> float:
    """Return the share of a step that a fix saves at most.

    Where a finding of communication gives none, it is what communication holds of the step.
    """
    if finding.saving_share:
        return finding.saving_share[1]
    held = diagnosis.steps.exposed_share if finding.category == "communication" else None
    return 1.0 if held is None else held


def advice(diagnosis: Diagnosis) -> Patch:
    """Put together what all problems say of the configuration."""
    patch: Patch = {}
    for finding in problems(diagnosis):
        patch = merged(patch, finding.config_patch)
    return patch


def left(name: str, out: Path, patch: Patch | None, least_share: float = 0) -> set[str]:
    """Return the rules with a problem in each of a few runs, but for what the machine does.

    A problem of which less than `least_share` of a step is promised is none.
    """
    rules: set[str] = set()
    for attempt in range(ATTEMPTS):
        made = recorded(name, out / str(attempt), patch)
        promised = [one for one in problems(made) if promises(one, made) >= least_share]
        found = {one.rule for one in promised} - OF_THE_MACHINE
        rules = found if attempt == 0 else rules & found
        if not rules:
            break
    return rules


@pytest.mark.skipif(not LINK, reason="communication costs too little over the bare loopback")
@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.saves and name != "late_rank"]
)
def test_a_mistake_leads_the_page_and_its_advice_leaves_none(name: str, tmp_path: Path) -> None:
    before = recorded(name, tmp_path / "before")
    lead = next(one for one in problems(before) if one.rule not in OF_THE_MACHINE)
    assert (lead.rule, bool(lead.fix)) == (CASES[name].rule, True), before.headline.line
    whole = {path.name: path.read_bytes() for path in (tmp_path / "before").glob("trace*.json")}
    assert_calm([*replayed(whole, tmp_path / "growing")], before)
    assert left(name, tmp_path / "after", advice(before)) == set()


@pytest.mark.skipif(not LINK, reason="communication costs too little over the bare loopback")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.saves])
def test_what_looks_wasteful_and_is_not_is_no_problem(name: str, tmp_path: Path) -> None:
    # On a busy machine a little of it costs time after all, as `make savings` allows for.
    assert left(name, tmp_path, None, least_share=0.05) == set()


def test_a_late_rank_leads_the_page_or_the_number_of_steps_that_prove_it(tmp_path: Path) -> None:
    before = recorded("late_rank", tmp_path / "before")
    lines = [one for one in (before.headline, *before.next_lines) if one.rule == LATE]
    assert [line.ranks for line in lines] == [[1]], before.headline.line
    finding = next(one for one in before.findings if one.rule == LATE)
    more = finding.more_steps or 0
    longer = recorded("late_rank", tmp_path / "longer", steps=30 + more) if more else before
    proven = next(one for one in longer.findings if one.rule == LATE)
    assert (proven.status, proven.ranks) == (Status.FAIL, (1,))
    after = recorded("late_rank", tmp_path / "after", {}, steps=60)
    assert not any(one.rule == LATE and one.ranks == (1,) for one in problems(after))
