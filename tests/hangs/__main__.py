"""`make hangs`: run every case with five seeds of 4 ranks, and a sixth of 8; then say what held.

Each run is a line of build/hangs/results.jsonl; runs that are in it are not repeated, so that a
run of hours can be interrupted. Arguments: names of cases; without any, all.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.hangs.cases import CASES
from tests.hangs.draw import Draw
from tests.hangs.launch import Outcome, alarms, has_said, run, start_launcher

SEEDS = range(6)
"""Of them the last one is of MORE_RANKS; with them each case is ended in every way."""

RANKS, MORE_RANKS = 4, 8
RESULTS = Path("build/hangs/results.jsonl")


def verdict(folder: Path) -> dict[str, Any]:
    """Return the root verdict on a recorded run, as `dsprof hang` says it."""
    command = [sys.executable, "-m", "dsprof", "hang", str(folder), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        return dict(json.loads(done.stdout)["verdicts"][0])
    except (ValueError, IndexError, KeyError):
        return {"kind": "none", "ranks": [], "mismatch": None, "sentence": done.stderr[-500:]} | {
            "cause": {"kind": "unknown"}
        }


def judge(case: str, draw: Draw, folder: Path, outcome: Outcome) -> dict[str, Any]:
    """Compare the verdict on a run with what was done."""
    said = verdict(folder / "trace")
    problems = CASES[case].problems(draw, said)
    if CASES[case].is_calm:
        problems += [f"alarm: {path}" for path in alarms(folder)]
    words = CASES[case].says.format(culprit=draw.culprit)
    if words and not has_said(folder, words):
        problems.append(f"no rank says: {words}")
    if not (folder / "stalled").exists():
        is_early = bool(alarms(folder))
        problems = ["alarm before the fault" if is_early else "the fault was never reached"]
    if outcome.live:
        live = json.loads(outcome.live)["verdicts"] if outcome.live[:1] == "{" else []
        problems += (
            ["live: " + text for text in CASES[case].problems(draw, live[0])]
            if live
            else ["live: no verdict"]
        )
    return {
        "case": case,
        "seed": draw.seed,
        "ranks": draw.ranks,
        "end": draw.end,
        "judged_s": outcome.judged_s,
        "problems": problems,
        "kind": said["kind"],
        "cause": said["cause"]["kind"],
        "confidence": said.get("confidence"),
        "sentence": said["sentence"],
    }


def wanted(names: list[str]) -> Iterator[tuple[str, Draw]]:
    """Yield the runs that no earlier call has made."""
    made = set()
    if RESULTS.exists():
        rows = map(json.loads, RESULTS.read_text().splitlines())
        made = {(row["case"], row["seed"], row["ranks"]) for row in rows}
    possible = [case for case in names or list(CASES) if CASES[case].is_possible]
    for seed in SEEDS:
        ranks = MORE_RANKS if seed == SEEDS[-1] else RANKS
        for case in possible:
            if (case, seed, ranks) not in made:
                yield case, Draw.of(case, seed, ranks)


def note(case: str, draw: Draw, folder: Path, outcome: Outcome) -> None:
    """Judge a run, and add it to the results."""
    row = judge(case, draw, folder, outcome)
    with RESULTS.open("a") as results:
        results.write(json.dumps(row) + "\n")
    print(case, draw.seed, draw.ranks, draw.end, row["problems"] or "as it was", flush=True)


def make_runs(names: list[str]) -> None:
    """Make the runs that are missing; one is judged while the next one starts."""
    launcher, notes = start_launcher(), []
    with ThreadPoolExecutor(1) as judges:
        for case, draw in wanted(names):
            folder = RESULTS.parent / f"{case}-{draw.seed}-{draw.ranks}"
            shutil.rmtree(folder, ignore_errors=True)
            ready, launcher = launcher, start_launcher()
            outcome = run(ready, case, draw, folder)
            notes.append(judges.submit(note, case, draw, folder, outcome))
    launcher.communicate("")
    for one in notes:
        one.result()  # raises what went wrong


def main(names: list[str]) -> int:
    """Make the runs that are missing, and print what did not hold in all of them."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    make_runs(names)
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    for line in summed_up(rows):
        print(line)
    return int(any(row["problems"] for row in rows))


def summed_up(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what held in all runs."""
    calm = [row for row in rows if CASES[row["case"]].is_calm]
    stuck = [row for row in rows if not CASES[row["case"]].is_calm]
    alarmed = [row for row in calm if row["problems"]]
    right = [row for row in stuck if not row["problems"]]
    named = [row for row in stuck if not any("names" in text for text in row["problems"])]
    yield f"{len(named)} of {len(stuck)} stuck or dead runs: right ranks; {len(right)}: also why"
    yield f"{len(alarmed)} of {len(calm)} runs that only take long raised an alarm"
    in_time = [row for row in stuck if not CASES[row["case"]].says]
    judged_s = sorted(row["judged_s"] for row in in_time if row["judged_s"] is not None)
    if judged_s:
        most_s, tail_s = judged_s[-1], judged_s[int(0.95 * len(judged_s))]
        yield (
            f"from fault to verdict in {len(judged_s)} runs: median "
            f"{statistics.median(judged_s):.1f} s, 95 % below {tail_s:.1f} s, most {most_s:.1f} s"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
