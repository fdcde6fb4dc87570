"""Trainers of others, by environment variable alone: their steps, micro-steps and phases."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsprof.hooks.wire.operations import WIRE_OPS
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from tests.dist.launch import launch

for package in ("transformers", "accelerate", "lightning"):
    pytest.importorskip(package, reason=f"no {package} here: make test-trainers installs it")

pytestmark = [pytest.mark.dist]

ACCUMULATION = 2
CASES = {
    "torch": [
        "trainer-ddp",
        "trainer-fsdp1",
        "trainer-fsdp2",
        "accelerate-fsdp1",
        "accelerate-fsdp2",
        "lightning-fsdp",
    ],
    "deepspeed": [
        "trainer-zero2",
        "trainer-zero3",
        "accelerate-zero2",
        "accelerate-zero3",
        "lightning-zero2",
        "lightning-zero3",
    ],
}
"""By what marks the steps: an engine in a process would mark those of plain torch, too."""


@dataclass(frozen=True)
class Case:
    """One trainer on one rank: what it and torch count, and the trace around it."""

    name: str
    rank: int
    counted: dict[str, Any]  # in the run with dsprof
    oracle: dict[str, Any]  # in a run without
    trace: RankTrace

    def __str__(self) -> str:
        return f"{self.name} rank {self.rank}"

    def holds(self, time_ns: Any) -> Any:
        """Tell which times of the trace are in this case."""
        start_ns = self.trace.header.started_monotonic_ns
        began, ended = (self.counted[at] - start_ns for at in ("start_ns", "end_ns"))
        return (began <= time_ns) & (time_ns < ended)


@pytest.fixture(scope="module", params=CASES)
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    out, names = tmp_path_factory.mktemp("trainers"), CASES[request.param]
    program = Path(__file__).with_name("program.py")
    bare = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    recorded = {"DSPROF": "1", "DSPROF_OUT": str(out / "trace")}
    for folder, args, env in (("oracle", ["--oracle"], bare), ("counted", [], recorded)):
        launch(program, args=[out / folder, *names, *args], env=env).check()
    return list(_cases(out, names))


def _cases(out: Path, names: list[str]) -> Iterator[Case]:
    for rank in range(2):
        counted, oracle = (
            json.loads((out / folder / f"rank{rank}.json").read_text())
            for folder in ("counted", "oracle")
        )
        [file] = (out / "trace").glob(f"*.rank{rank:05d}.json")
        trace = read_trace(file)
        for name in names:
            yield Case(name, rank, counted[name], oracle[name], trace)


def test_steps_are_those_that_the_trainer_counts(cases: list[Case]) -> None:
    for case in cases:
        steps = [step for step in case.trace.steps if case.holds(step.end_ns)]
        assert len(steps) == case.counted["steps"] == case.oracle["steps"], case
        assert [step.micro_steps for step in steps] == [ACCUMULATION] * len(steps), case


def test_each_micro_batch_has_a_forward_and_a_backward(cases: list[Case]) -> None:
    for case in cases:
        seen = Counter(span.name for span in case.trace.spans if case.holds(span.start_ns))
        for phase in ("forward", "backward"):
            assert seen[phase] == case.counted["micro_batches"], f"{case} {phase}"


def test_operations_are_in_the_phases_in_which_torch_counts_them(cases: list[Case]) -> None:
    for case in cases:
        comm = case.trace.collectives
        seen = Counter(
            f"{comm.words[comm.phase[row]]}/{comm.words[comm.op[row]]}"
            for row in np.flatnonzero(case.holds(comm.issue_ns))
        )
        expected: Counter[str] = Counter()
        for key, calls in case.oracle["ops"].items():
            phase, op = key.split("/")
            expected[f"{phase}/{WIRE_OPS[op].name}"] += calls
        assert seen == expected, case


def test_every_wait_is_matched_and_no_hook_failed(cases: list[Case]) -> None:
    for case in cases:
        trailer = case.trace.trailer
        assert trailer is not None
        assert trailer.unmatched_waits == 0, case
        assert not trailer.failed_hooks, case
