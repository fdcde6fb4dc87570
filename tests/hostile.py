"""Gives files made to stop it to every command of dsprof, in a gigabyte and a minute each.

    python -m tests.hostile [--scale 1.0] [--every 1] [--only NAME] [CLASS...]

Every answer must be 0, 1 or 2 with one line or a report, never a traceback, a signal or silence;
a refusal names the file; and a folder that holds a good run beside is reported.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from dsprof.__main__ import main as dsprof
from dsprof.errors import escaped
from tests.factories.bombs import CASES
from tests.factories.trace_files import write_run

MEMORY_BYTES = 1 << 30
CPU_S = 60
WALL_S = 400
_TEXT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Question:
    """A command, what its refusal must name, and the exit codes that it may have."""

    command: Sequence[str]
    named: str = ""
    codes: Sequence[int] = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command came to; `problem` is empty where all is well."""

    problem: str
    cpu_s: float
    peak_mb: int
    said: str


def ask(question: Question) -> Answer:
    """Run a command in a child of this process, which has imported all that it needs."""
    with tempfile.TemporaryFile() as errors:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _run(question.command, errors.fileno())
        _, status, usage = os.wait4(child, 0)
        errors.seek(0)
        said = errors.read(_TEXT_BYTES).decode("utf-8", "replace")
    problem = _problem(os.waitstatus_to_exitcode(status), said, question)
    return Answer(problem, usage.ru_utime + usage.ru_stime, usage.ru_maxrss >> 10, said)


def _run(command: Sequence[str], errors: int) -> None:
    """Be the child."""
    code = 99
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(errors, 2)
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(WALL_S)
        try:
            code = dsprof(command)
        except SystemExit as refusal:
            code = refusal.code if isinstance(refusal.code, int) else 1
        sys.stdout.flush()
    except BaseException:  # whatever it is, the parent is told
        traceback.print_exc()
    finally:
        os._exit(code)


def _problem(code: int, said: str, question: Question) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    if "Traceback" in said:
        return "a traceback"
    if code not in question.codes:
        return f"exit code {code}"
    if code == 2 and "out of memory" in said:
        return "memory ran out"
    if code == 2 and question.named not in said:
        return "does not name the file"
    if any(not char.isprintable() and char != "\n" for char in said):
        return "steers the terminal"
    return ""


def commands(path: Path, good: Path, kind: str) -> Iterator[Question]:
    """Yield what is asked of a file."""
    name, file = escaped(path.name), str(path)
    yield Question(["lint", file], name)
    if kind == "config":
        yield Question(["report", str(good), "--format", "text", "--config", file], name)
        yield Question(["check", str(good), "--budget", file], name)
        return
    for form in ("text", "html", "json"):
        yield Question(["report", file, "--format", form, "-o", os.devnull], name)
    yield Question(["compare", file, str(good), "-o", os.devnull], name)
    yield Question(["check", file, "--budget", str(good.parent / "budget.yaml")], name)


def questions(kind: str, name: str, scale: float, folder: Path) -> Iterator[Question]:
    """Make one case, and yield all that there is to ask of it while it is there."""
    made, good = folder / "made", folder / "good"
    made.mkdir()
    write_run(good)
    (folder / "budget.yaml").write_text("operations_per_step: 40\n")
    CASES[kind][name](made, scale)
    for path in [] if kind == "folder" else sorted(made.iterdir()):
        yield from commands(path, good, kind)
    if kind != "config":
        write_run(made, 2)
        for form in ("json", "text", "html")[: 3 if kind == "folder" else 1]:
            yield Question(["report", str(made), "--format", form, "-o", os.devnull], codes=(0,))
    shutil.rmtree(folder)
    folder.mkdir()


def _warm(folder: Path) -> None:
    """Import here what commands import, so that no child has to."""
    (folder / "budget.yaml").write_text("operations_per_step: 40\n")
    good = folder / "good"
    write_run(good)
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        for question in commands(good, good, "native"):
            dsprof(question.command)


def give(kind: str, only: str, scale: float, every: int, place: Path) -> int:
    """Ask every so many-th question of a class, say how it went, and return what went wrong."""
    asked = wrong = peak_mb = 0
    slowest_s = 0.0
    names = [name for name in CASES[kind] if only in name]
    each = (one for name in names for one in questions(kind, name, scale, place))
    for number, question in enumerate(each):
        if number % every:
            continue
        answer = ask(question)
        asked += 1
        slowest_s, peak_mb = max(slowest_s, answer.cpu_s), max(peak_mb, answer.peak_mb)
        if answer.problem:
            wrong += 1
            words = " ".join(question.command).replace(f"{place}/", "")
            cost = f"{answer.cpu_s:.0f} CPU s, {answer.peak_mb} MB"
            print(f"{kind}: {answer.problem} ({cost}): {words!r}: {answer.said[-300:]!r}")
    cost = f"at most {slowest_s:.1f} CPU s and {peak_mb} MB each"
    print(f"{kind}: {len(names)} cases, {asked} commands, {wrong} wrong, {cost}", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("classes", nargs="*", choices=[[], *CASES], metavar="CLASS")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--every", type=int, default=1, help="ask every so many-th question")
    args = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        _warm(Path(folder))
        (place := Path(folder) / "case").mkdir()
        kinds = args.classes or CASES
        wrong = sum(give(kind, args.only, args.scale, args.every, place) for kind in kinds)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
