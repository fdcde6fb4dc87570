"""Records one wrong run, has it judged, makes the change and measures; started on each rank.

Rank 0 writes prediction.json before anything is built with the change, and measured.json after.
Both trainings then live in one process and take turns, so that a busy machine disturbs them alike.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

import dsprof
from dsprof.analysis.baseline import read_baseline
from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.document import to_json
from dsprof.diagnosis.model import Diagnosis
from dsprof.trace.run import find_run
from examples.wrong.cases import CASES, Case
from examples.wrong.training import Patch, Step
from tests.dist.leaving import leave_group

_WARM_STEPS = 5
_RECORDED_STEPS = 60
_RECORDED_S = 6.0  # at most


def record(step: Step, out: Path) -> None:
    """Train for a few seconds with dsprof on."""
    count = min(_RECORDED_STEPS, steps_in(_RECORDED_S, step))
    dsprof.enable(out=str(out))
    for _ in range(count):
        step()
    dsprof.disable()
    dist.barrier()


def steps_in(seconds: float, step: Step) -> int:
    """Return how many steps fit in `seconds`, at least 4: the same on all ranks."""
    for _ in range(_WARM_STEPS):
        step()
    found = [max(4, int(seconds * 1e3 / milliseconds(step, _WARM_STEPS)))]
    dist.broadcast_object_list(found)
    return found[0]


def milliseconds(step: Step, count: int) -> float:
    """Return the mean time of a step, over `count` of them."""
    dist.barrier()
    start_ns = time.perf_counter_ns()
    for _ in range(count):
        step()
    dist.barrier()
    return (time.perf_counter_ns() - start_ns) / count / 1e6


def predict(case: Case, out: Path, baseline: Path) -> Patch:
    """Judge the record, write down what is predicted, and return what is to be changed."""
    found: list[dict[str, Any]] = [{}]
    if dist.get_rank() == 0:
        diagnosis = diagnose(
            find_run([out / "trace"]), baseline=(read_baseline(baseline), str(baseline))
        )
        (out / "diagnosis.json").write_bytes(to_json(diagnosis))
        finding = next((f for f in diagnosis.findings if f.rule == case.rule), None)
        if finding is not None:
            found = [
                {
                    "status": finding.status.value,
                    "summary": finding.summary,
                    "saving_ms": finding.saving_ms_per_step,
                    "patch": finding.config_patch or {},
                    "step_ms": mean_step_ms(diagnosis),
                }
            ]
        (out / "prediction.json").write_text(json.dumps(found[0]))
    dist.broadcast_object_list(found)
    patch: Patch = found[0].get("patch", {})
    return patch


def mean_step_ms(diagnosis: Diagnosis) -> float:
    """Return the mean recorded step."""
    return diagnosis.steps.total.total_ns / diagnosis.steps.measured_steps / 1e6


def compare(before: Step, after: Step, rounds: int, seconds: float) -> list[list[float]]:
    """Return milliseconds a step of before, after, before again, round after round."""
    counts = steps_in(seconds, before), steps_in(seconds, after)
    turns = (before, counts[0]), (after, counts[1]), (before, counts[0])
    return [[milliseconds(step, count) for step, count in turns] for _ in range(rounds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("out", type=Path)
    parser.add_argument("baseline", type=Path, help="what dsprof bench wrote")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.7, help="of each turn")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    case = CASES[args.case]
    before = case.make(args.case, None)
    record(before, args.out / "trace")
    patch = predict(case, args.out, args.baseline)
    rounds = compare(before, case.make(args.case, patch), args.rounds, args.seconds)
    if dist.get_rank() == 0:
        (args.out / "measured.json").write_text(json.dumps(rounds))
    leave_group()


if __name__ == "__main__":
    main()
