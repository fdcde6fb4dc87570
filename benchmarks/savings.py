"""Prints predicted against measured savings of the runs in examples/wrong, as Markdown.

python -m benchmarks.savings [CASE...]
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from benchmarks.slow_link import enter
from examples.wrong.cases import CASES, Case
from tests.dist.launch import ROOT, environment, launch

OUT = ROOT / "build" / "savings"
PROGRAM = ROOT / "benchmarks" / "savings_case.py"
MOST_DRIFT = 0.1
TRIES = 3
HEAD = ("case", "rule", "step", "drift", "noise", "predicted", "measured", "error", "verdict")


@dataclass(frozen=True)
class Outcome:
    """What was predicted of a case, and what was measured; milliseconds of a step."""

    case: Case
    predicted: tuple[float, float] | None  # no saving
    rounds: list[list[float]]  # before, after, before again
    recorded_ms: float = 0.0  # a step, while dsprof recorded

    @property
    def before_ms(self) -> float:
        """A step with the mistake."""
        return median(time for one, _, two in self.rounds for time in (one, two))

    @property
    def drift(self) -> float:
        """How far a step before the change is from a recorded one."""
        return self.before_ms / self.recorded_ms - 1 if self.recorded_ms else 0.0

    @property
    def noise_ms(self) -> float:
        """What two equal runs of a round differ by."""
        return median(abs(one - two) for one, _, two in self.rounds)

    @property
    def saved_ms(self) -> float:
        """What the change saved, against the runs before it and after it."""
        return median((one + two) / 2 - after for one, after, two in self.rounds)

    @property
    def error(self) -> float | None:
        """How far the middle of the prediction is from what was measured."""
        if self.predicted is None or not self.case.saves:
            return None
        return sum(self.predicted) / 2 / self.saved_ms - 1

    @property
    def misses(self) -> str:
        """Say what of the promise does not hold; "" if all does."""
        if not self.case.saves:
            return self._decoy()
        if self.predicted is None:
            return "no saving was predicted"
        low, high = self.predicted
        missed = {
            "hidden in noise": self.saved_ms <= 3 * self.noise_ms,
            "range too wide": high > 2 * low,
            "out of range": not low <= self.saved_ms <= high,
        }
        return ", ".join(name for name, is_missed in missed.items() if is_missed)

    def _decoy(self) -> str:
        limit_ms = max(3 * self.noise_ms, 0.05 * self.before_ms)
        promised = self.predicted[1] if self.predicted else 0.0
        missed = {"promised": promised > limit_ms, "saved": abs(self.saved_ms) > limit_ms}
        return ", ".join(name for name, is_missed in missed.items() if is_missed)

    def row(self, name: str) -> tuple[str, ...]:
        """Return the cells of the table."""
        low_high = self.predicted
        return (
            name,
            self.case.rule,
            f"{self.before_ms:.1f}",
            f"{self.drift:+.0%}",
            f"{self.noise_ms:.1f}",
            "none" if low_high is None else f"{low_high[0]:.1f} to {low_high[1]:.1f}",
            f"{self.saved_ms:.1f}",
            "" if self.error is None else f"{self.error:+.0%}",
            self.misses or "holds",
        )


@cache
def measured_machine(*variables: tuple[str, str]) -> Path:
    """Let dsprof bench measure the machine as processes with these variables see it."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{'-'.join(['baseline', *(value for _, value in variables)])}.json"
    command = [sys.executable, "-m", "dsprof", "bench", "--nproc-per-node", "2"]
    command += ["--backend", "gloo", "--sizes", "4K,64K,1M,4M", "--output", str(path)]
    changed = environment(dict(variables))
    done = subprocess.run(command, env=changed, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return path


def outcome(name: str, case: Case, args: list[object]) -> Outcome:
    """Run a case and read what it left."""
    out = OUT / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    baseline = measured_machine(*case.variables.items())
    launch(PROGRAM, args=[name, out, baseline, *args], env=case.variables, timeout=400).check()
    said = json.loads((out / "prediction.json").read_text())
    rounds = json.loads((out / "measured.json").read_text())
    return Outcome(case, said.get("saving_ms"), rounds, said.get("step_ms", 0.0))


def steady(name: str, case: Case, args: list[object]) -> Outcome:
    """Run a case until the machine is the same before the change as it was in the record."""
    tried: list[Outcome] = []
    while len(tried) < TRIES and not any(abs(one.drift) <= MOST_DRIFT for one in tried):
        tried.append(outcome(name, case, args))
    return min(tried, key=lambda one: abs(one.drift))


def print_row(cells: tuple[str, ...]) -> None:
    print("|", " | ".join(cells), "|", flush=True)


def outcomes(names: list[str], args: list[object]) -> Iterator[Outcome]:
    for name in names:
        one = steady(name, CASES[name], args)
        print_row(one.row(name))
        yield one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    print(f"Two ranks over gloo; {enter('benchmarks.savings')}. Milliseconds of a step.\n")
    print_row(HEAD)
    print_row(("---",) * len(HEAD))
    found = list(outcomes(args.cases or list(CASES), ["--rounds", args.rounds]))
    errors = [abs(one.error) for one in found if one.error is not None]
    held = sum(not one.misses for one in found)
    print(f"\n{held} of {len(found)} hold.", end=" ")
    print(f"Median error {median(errors):.0%}." if errors else "")


if __name__ == "__main__":
    main()
