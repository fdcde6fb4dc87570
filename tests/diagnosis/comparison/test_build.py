"""Two diagnoses side by side: what is said to have changed, and what is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dsprof.diagnosis.comparison.model import Change
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.environment import EngineSettings, EnvironmentInfo
from dsprof.findings.finding import Finding, Severity, Status
from tests.diagnosis.comparison.compared import compared, run
from tests.factories import diagnosis as factory


def environment(**changes: Any) -> Diagnosis:
    return run(environment=msgspec.structs.replace(factory.environment(), **changes))


def test_a_run_does_not_differ_from_itself() -> None:
    made = compared(run(), run())
    assert (made.unlike, made.configuration, made.environment, made.versions) == ([], [], [], [])
    assert not any(one.is_changed for one in [*made.operations, *made.kinds])
    assert {one.fate for one in made.findings} == {"still there"}
    assert {one.judgement for one in made.times} <= {"same", "inconclusive"}
    assert made.verdict == "Before and after are the same run"
    assert made.summary.startswith("The same calls and bytes; ")
    assert "configuration, environment and versions are the same." in made.summary


def test_runs_of_which_other_ranks_were_recorded_are_not_comparable() -> None:
    info = run().run
    other = run(run=msgspec.structs.replace(info, ranks=info.ranks[1:]))
    assert compared(run(), other).unlike == ["recorded ranks: 0-1 before, 1 after"]


def test_without_deepspeed_no_configuration_is_called_alike() -> None:
    made = environment(written_config={}, effective_config={}, engines=[])
    summary = compared(made, made).summary
    assert summary.endswith("; environment and versions are the same.")


@pytest.mark.parametrize(("sides", "told"), [((True, False), "after"), ((False, True), "before")])
def test_settings_that_were_not_recorded_are_not_called_equal_or_changed(sides, told) -> None:
    runs = [run() if is_there else run(environment=EnvironmentInfo()) for is_there in sides]
    made = compared(*runs)
    assert (made.unrecorded, made.environment, made.versions) == ([told], [], [])
    assert made.summary.endswith(f"not recorded {told}.")


def test_versions_alone_are_no_settings() -> None:
    made = run(environment=EnvironmentInfo(versions={"nccl": "2.21.5"}))
    made.quality.is_recorded = False
    comparison = compared(made, made)
    assert comparison.unrecorded == ["before", "after"]
    assert comparison.summary.endswith("not recorded before and after.")


def test_an_environment_that_was_not_recorded_is_not_called_the_same() -> None:
    config = {"zero_optimization": {"stage": 2}}
    made = run(environment=EnvironmentInfo(written_config=config))
    made.run.versions = {}
    assert compared(made, made).summary.endswith("; configuration is the same.")


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (factory.diagnosis(4, 40), "ranks: 2 before, 4 after"),
        (run(run=msgspec.structs.replace(run().run, device="cuda")), "device: cpu before"),
        (
            run(run=msgspec.structs.replace(run().run, parameters=1_000_000)),
            "parameters of the model: 262,144 before, 1,000,000 after",
        ),
        (environment(effective_config={"train_batch_size": 16}), "batch of a step: 8 samples"),
    ],
)
def test_runs_of_unlike_kinds_are_said_to_be_so(other: Diagnosis, reason: str) -> None:
    first = environment(effective_config={"train_batch_size": 8})
    first.run.parameters = 262_144
    made = compared(first, other)
    assert len(made.unlike) == 1
    assert made.unlike[0].startswith(reason)
    assert made.verdict.startswith(f"Not comparable ({reason}")
    assert {one.judgement for one in made.times} == {"not compared"}


def test_the_same_batch_in_other_micro_steps_is_the_same_work() -> None:
    first = environment(effective_config={"train_batch_size": 8})
    other = environment(effective_config={"train_batch_size": 8})
    for row in other.steps.rows:
        row.micro_steps = 4
    assert compared(first, other).unlike == []
    for made in (first, other):
        made.environment.effective_config.clear()
    assert compared(first, other).unlike == [
        "batch of a step: 2 micro-steps before, 4 micro-steps after"
    ]


def test_of_ddp_and_deepspeed_the_framework_and_what_was_written_are_listed() -> None:
    """Without a DeepSpeed configuration before, its defaults after are no change of a user's."""
    before = environment(written_config={}, effective_config={})
    after = environment(
        written_config={"zero_optimization": {"stage": 2}},
        effective_config={"zero_optimization": {"stage": 1, "overlap_comm": True}, "dump": False},
    )
    before.run.setup, after.run.setup = "", "DeepSpeed ZeRO-1"
    assert compared(before, after).configuration == [
        Change(name="framework", before="no DeepSpeed configuration", after="DeepSpeed ZeRO-1"),
        Change(name="zero_optimization.stage", before=None, after="1"),
    ]


def test_of_several_engines_the_settings_of_each_are_compared() -> None:
    before, after = (
        environment(
            written_config={},
            effective_config={"gradient_clipping": 1.0},
            engines=[
                EngineSettings(engine=0, effective={"gradient_clipping": 1.0}),
                EngineSettings(engine=1, effective={"gradient_clipping": clipping}),
            ],
        )
        for clipping in (1.0, 2.0)
    )
    assert compared(before, after).configuration == [
        Change(name="engine 1: gradient_clipping", before="1.0", after="2.0")
    ]


def test_settings_are_compared_by_their_full_names() -> None:
    before = environment(
        written_config={},
        effective_config={"zero_optimization": {"stage": 2, "overlap_comm": False}},
        variables={"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring"},
    )
    after = environment(
        written_config={},
        effective_config={"zero_optimization": {"stage": 3, "overlap_comm": False}, "fp16": {}},
        variables={"NCCL_DEBUG": "INFO", "NCCL_PROTO": "LL"},
        effective={},
        gpus=["A100", "A100"],
    )
    after.run.versions = {**after.run.versions, "torch": "2.14.0"}
    after.environment.versions = {}
    made = compared(before, after)
    assert made.configuration == [
        Change(name="fp16", before=None, after="{}"),
        Change(name="zero_optimization.stage", before="2", after="3"),
    ]
    assert {one.name: (one.before, one.after) for one in made.environment} == {
        "GPUs": (None, "2 x A100"),
        "NCCL_ALGO": ("Ring", None),
        "NCCL_DEBUG": ("WARN", "INFO"),
        "NCCL_PROTO": (None, "LL"),
        "OMP_NUM_THREADS": ("2", None),
    }
    assert made.versions == [Change(name="torch", before="2.13.0", after="2.14.0")]


def test_what_names_a_launch_is_no_setting() -> None:
    launch = {
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "x",
        "DSPROF_OUT": "a",
        "SLURM_JOB_ID": "7",
    }
    before = environment(variables=launch)
    after = environment(variables={name: f"{value}2" for name, value in launch.items()})
    assert compared(before, after).environment == []


def finding(rule: str, status: Status, severity: Severity = Severity.NONE) -> Finding:
    return Finding(rule=rule, title=rule, status=status, severity=severity, summary=f"of {rule}")


def test_what_became_of_findings() -> None:
    low, high = Severity.LOW, Severity.HIGH
    fail, ok, unknown = Status.FAIL, Status.PASS, Status.UNKNOWN
    before = [
        finding("mended", fail, high),
        finding("blind", fail, high),
        finding("dropped", fail, low),
        finding("grown", fail, low),
        finding("shrunk", fail, high),
        finding("kept", fail, low),
        finding("passing", ok),
        finding("remark", Status.INFO),
        finding("lately", unknown),
    ]
    after = [
        finding("mended", ok),
        finding("blind", unknown),
        finding("grown", fail, high),
        finding("shrunk", fail, low),
        finding("kept", fail, low),
        finding("passing", ok),
        finding("remark", fail, low),
        finding("fresh", fail, high),
        finding("lately", fail, high),
    ]
    made = compared(run(findings=before), run(findings=after))
    assert {one.rule: (one.fate, one.before, one.after) for one in made.findings} == {
        "mended": ("gone", "high", "pass"),
        "blind": ("now unknown", "high", "unknown"),
        "dropped": ("now unknown", "low", ""),
        "grown": ("worse", "low", "high"),
        "shrunk": ("milder", "high", "low"),
        "kept": ("still there", "low", "low"),
        "remark": ("new", "info", "low"),
        "fresh": ("unknown before", "", "high"),
        "lately": ("unknown before", "unknown", "high"),
    }
    assert "1 new, 2 unknown before" in made.summary
    assert "1 gone" in made.summary
