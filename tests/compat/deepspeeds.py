"""Tries releases of DeepSpeed: does the trace say what torch, DeepSpeed and arithmetic say?"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsprof.analysis.rank.intervals import unseen
from dsprof.hooks.wire.operations import WIRE_OPS
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from tests.compat import zero_model
from tests.compat.environments import environment
from tests.compat.page import Part, table
from tests.dist.launch import launch

RELEASES = ("0.14.5", "0.15.4", "0.16.9", "0.17.6", "0.18.9", "0.19.8")
"""The newest of each minor series."""

PROGRAM = Path(__file__).with_name("zero_program.py")
HOLDS = "yes"
NO_HOOK = "none"


@dataclass(frozen=True)
class Stage:
    """One rank under one stage: what a bare run counted, and the trace of the recorded one."""

    stage: int
    oracle: dict[str, Any]
    recorded: dict[str, Any]
    trace: RankTrace

    def holds(self, time_ns: Any) -> Any:
        """Tell which times of the trace are in this stage."""
        start_ns = self.trace.header.started_monotonic_ns
        began, ended = (self.recorded[at] - start_ns for at in ("start_ns", "end_ns"))
        return (began <= time_ns) & (time_ns < ended)

    def rows(self) -> Any:
        """Return the rows of the collectives in this stage."""
        return np.flatnonzero(self.holds(self.trace.collectives.issue_ns))


def steps(at: Stage) -> bool:
    """Compare optimizer steps and micro-steps with what the program did."""
    seen = [step.micro_steps for step in at.trace.steps if at.holds(step.end_ns)]
    return seen == [zero_model.ACCUMULATION] * zero_model.STEPS


def phases(at: Stage) -> bool:
    """Compare the operations on the wire, phase by phase, with those that torch counts."""
    comm = at.trace.collectives
    seen = Counter(f"{comm.words[comm.phase[row]]}/{comm.words[comm.op[row]]}" for row in at.rows())
    expected: Counter[str] = Counter()
    for key, calls in at.oracle["ops"].items():
        phase, op = key.split("/")
        expected[f"{phase}/{WIRE_OPS[op].name}"] += calls
    return seen == expected


def requested(at: Stage) -> bool:
    """Compare the requested operations with those that DeepSpeed logs."""
    comm = at.trace.collectives
    requests = {(int(comm.request[row]), comm.words[comm.requested[row]]) for row in at.rows()}
    return Counter(name for _, name in requests) == Counter(at.oracle["requested"])


def flushes(at: Stage) -> bool:
    """Compare causes and elements of the flushes with arithmetic, and with what they carried."""
    seen = [flush for flush in at.trace.flushes if at.holds(flush.start_ns)]
    times = zero_model.STEPS * zero_model.reductions_a_step(at.stage)
    comm = at.trace.collectives
    carried = [int(comm.elements[comm.flush == flush.id].sum()) for flush in seen]
    elements = [flush.elements for flush in seen]
    fits = [zero_model.CAPACITY - zero_model.LARGEST < n <= zero_model.CAPACITY for n in elements]
    return (
        [flush.cause for flush in seen] == zero_model.CAUSES * times
        and sum(elements) == zero_model.GRADIENTS * times
        and all(fits[::2])
        and carried == elements
    )


def fetches(at: Stage) -> bool:
    """Compare what stage 3 fetched with the gathers that name a fetch, and count the others."""
    comm, rows = at.trace.collectives, at.rows()
    gathers = [row for row in rows if comm.words[comm.phase[row]] in ("forward", "backward")]
    gathers = [row for row in gathers if comm.words[comm.op[row]] == "all_gather_into_tensor"]
    numbers = {one.id for one in at.trace.fetches if one.kind in ("fetch", "prefetch")}
    awaited = [one for one in at.trace.fetches if one.kind == "fetch" and at.holds(one.start_ns)]
    carried = sum(int(comm.elements[row]) for row in gathers)
    return (
        all(int(comm.fetch[row]) in numbers for row in gathers)
        and sum(one.elements for one in awaited) == carried
        and bool(gathers) == (at.stage == 3)
    )


def waits(at: Stage) -> bool:
    """Tell whether it is known how long each collective held the program."""
    return not unseen(at.trace.collectives)[at.rows()].any()


def settings(at: Stage) -> bool:
    """Compare the configuration in force with what the program wrote."""
    engine = at.trace.engines[zero_model.STAGES.index(at.stage)]
    return all(
        engine.effective[key].items() >= value.items()
        if isinstance(value, dict)
        else engine.effective[key] == value
        for key, value in engine.written.items()
    )


def losses(at: Stage) -> bool:
    """Compare the losses with those of the run without dsprof, bit by bit."""
    return bool(at.recorded["losses"] == at.oracle["losses"])


CHECKS: tuple[Callable[[Stage], bool], ...] = (
    *(steps, phases, requested, flushes, fetches),
    *(waits, settings, losses),
)


def part(releases: Sequence[str]) -> Part:
    """Return the table of some releases, or of all."""
    head = ["DeepSpeed", *(check.__name__ for check in CHECKS), "hooks off"]
    rows = []
    for release in releases or RELEASES:
        rows.append([release, *_row(release).values()])
        print(*rows[-1], flush=True)
    holds = all(row[1:] == [HOLDS] * len(CHECKS) + [NO_HOOK] for row in rows)
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return Part([f"{datetime.date.today()}, {versions}:", "", *table(head, rows)], holds)


def _row(release: str) -> dict[str, str]:
    try:
        python = environment("deepspeed", release)
        subprocess.run([python, "-c", "import deepspeed"], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return {"import": f"does not import: {said[-1] if said else error}"}
    return try_release(python, Path(tempfile.mkdtemp(prefix=f"deepspeed-{release}-")))


def try_release(python: Path, out: Path) -> dict[str, str]:
    """Return for each check and for "hooks off" what `python`'s DeepSpeed gives."""
    bare = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    recorded = {"DSPROF": "1", "DSPROF_OUT": str(out / "trace")}
    for folder, args, env in (("oracle", ["--oracle"], bare), ("recorded", [], recorded)):
        env["LOCAL_SIZE"] = "2"  # without it 0.14 asks numactl how many devices a CPU is
        result = launch(PROGRAM, args=[out / folder, *args], env=env, timeout=500, python=python)
        (out / f"{folder}.log").write_text(result.output)
        if result.returncode:
            return {"program": f"ends with exit code {result.returncode}, see {out}/{folder}.log"}
    stages = [stage for rank in range(2) for stage in _stages(out, rank)]
    answers = {check.__name__: _answer(check, stages) for check in CHECKS}
    return {**answers, "hooks off": _hooks_off(stages[0].trace)}


def _stages(out: Path, rank: int) -> list[Stage]:
    oracle, recorded = (
        json.loads((out / folder / f"rank{rank}.json").read_text())
        for folder in ("oracle", "recorded")
    )
    [file] = (out / "trace").glob(f"*.rank{rank:05d}.json")
    trace = read_trace(file)
    return [Stage(int(key), oracle[key], recorded[key], trace) for key in recorded]


def _answer(check: Callable[[Stage], bool], stages: list[Stage]) -> str:
    wrong = sorted({at.stage for at in stages if not check(at)})
    return f"not at stage {', '.join(map(str, wrong))}" if wrong else HOLDS


def _hooks_off(trace: RankTrace) -> str:
    off = {hook.name: hook.why for hook in trace.hooks if hook.why}
    if trace.trailer is not None:
        off |= trace.trailer.failed_hooks
    return "; ".join(f"{name}: {why}" for name, why in off.items()) or NO_HOOK
