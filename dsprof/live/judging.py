"""Judges a run while it lasts, by the rules of the report, and keeps findings from flickering."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO

import msgspec

from dsprof.analysis.hang.model import HangReport, HangVerdict
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.run import RuleInfo
from dsprof.environment.own_command import own_command
from dsprof.errors import DsprofError
from dsprof.findings.finding import Finding, Status
from dsprof.live.pacing import REST, used_by_children_s

_SHORTEST_REST_S = 1.0

_AGAIN_S = 60.0

_PERSISTENCE = 2
"""This many judgements in a row raise a finding, and withdraw it."""


class _Run(msgspec.Struct):
    steps: int


class Judgement(msgspec.Struct):
    """What is read of a diagnosis: a tenth of the time that all of it takes."""

    run: _Run
    findings: list[Finding]
    rules: list[RuleInfo]


class Standing:
    """The findings that stand.

    A rule is raised and withdrawn at most once while the run lasts; the last judgement, of the
    whole run, holds without more ado.
    """

    def __init__(self, persistence: int = _PERSISTENCE) -> None:
        self._persistence = persistence
        self.findings: list[Finding] = []
        self.waiting: list[str] = []
        self._agreed: dict[str, int] = {}  # rule -> judgements in a row that are unlike what stands
        self._withdrawn: set[str] = set()

    def hear(self, judgement: Judgement | Diagnosis, *, is_over: bool) -> None:
        """Take the judgement of the run so far."""
        failed = [one for one in judgement.findings if one.status is Status.FAIL]
        if is_over:
            self.findings, self.waiting = failed, []
            return
        self.waiting = [rule.rule for rule in judgement.rules if rule.judges_end]
        failed = [one for one in failed if one.rule not in self.waiting]
        # After an end that was none, what was found of it does not hold.
        self.findings = [one for one in self.findings if one.rule not in self.waiting]
        known = {one.rule for one in failed}
        standing = self._settled(known)
        kept = [one for one in self.findings if one.rule in standing - known]
        self.findings = [*(one for one in failed if one.rule in standing), *kept]

    def _settled(self, heard: set[str]) -> set[str]:
        """Return the rules that stand, now that these failed."""
        standing = {one.rule for one in self.findings}
        unlike = (heard ^ standing) - self._withdrawn
        self._agreed = {rule: self._agreed.get(rule, 0) + 1 for rule in unlike}
        due = {rule for rule, count in self._agreed.items() if count >= self._persistence}
        self._agreed = {rule: n for rule, n in self._agreed.items() if rule not in due}
        self._withdrawn |= due & standing
        return standing ^ due


class Asked:
    """A command of dsprof that runs beside this process: it may take seconds and memory.

    After an answer it rests: at first as long as it used the CPU, then twice as long each time,
    until it takes 4 % of a core. So what is wrong from the start is seen in the first seconds.
    """

    def __init__(self, *arguments: str) -> None:
        self._command = own_command("dsprof.__main__", *arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._files: tuple[IO[bytes], ...] = ()
        self._due = monotonic()
        self._rest = 1
        self._used_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it may be asked again."""
        return not self.is_busy and monotonic() >= self._due

    @property
    def is_busy(self) -> bool:
        """Whether it was asked and has not answered."""
        return self._process is not None

    def ask(self) -> None:
        """Start it; where that is not possible now, it is due again later."""
        self._used_s = used_by_children_s()
        self._due = monotonic() + _AGAIN_S
        with suppress(OSError):  # no more processes, or no room for their answers
            self._files = tuple(map(tempfile.TemporaryFile, ("w+b", "w+b")))
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=self._files[0],
                stderr=self._files[1],
                start_new_session=True,  # Ctrl-C is for whoever watches
            )

    def answer(self) -> bytes | None:
        """Return what it wrote, once it has ended; None before.

        Raises:
            DsprofError: it failed.
        """
        if self._process is None or self._process.poll() is None:
            return None
        code, self._process = self._process.returncode, None
        rest_s = self._rest * (used_by_children_s() - self._used_s)
        self._due = monotonic() + max(rest_s, _SHORTEST_REST_S)
        self._rest = min(2 * self._rest, REST)
        with self._files[0] as output, self._files[1] as errors:
            output.seek(0)
            errors.seek(0)
            if code not in (0, 1):
                said = errors.read().decode(errors="replace").strip()
                raise DsprofError(said.removeprefix("dsprof: ") or "the process was killed")
            return output.read()

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Judge:
    """Judges a run so far by the rules of the report, and asks why it is stuck where it is."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.standing = Standing()
        self.steps: int | None = None  # that the last judgement saw
        self.stuck = ""  # why no step ends
        self.stuck_key = ""  # of what is stuck: `stuck` also says for how long
        self.failure = ""  # why there is no judgement
        self.is_done = False  # the whole run is judged
        names = [str(path) for path in paths]
        self._report = Asked("report", *names, "--format", "json", "-o", "-", "--quiet")
        self._hang = Asked("hang", "--live", *names, "--format", "json", "-o", "-", "--quiet")
        self._is_of_whole = False

    def poll(self, *, is_over: bool, is_stalled: bool) -> None:
        """Take answers that are ready, and ask again where that is due."""
        if not is_over:  # also again: a rank that was silent, or thought gone, may go on
            self.is_done = self._is_of_whole = False
        try:
            self._take()
        except DsprofError as error:
            self.failure = str(error)
        except msgspec.MsgspecError:  # as of a dsprof that is installed anew meanwhile
            self.failure = "dsprof report or dsprof hang gave no readable answer"
        if not is_stalled:
            self.stuck = self.stuck_key = ""
        elif self._hang.is_due:
            self._hang.ask()
        is_new_end = is_over and not (self._is_of_whole or self._report.is_busy)
        if not self.is_done and (self._report.is_due or is_new_end):
            self._is_of_whole = is_over
            self._report.ask()

    @property
    def is_busy(self) -> bool:
        """Whether an answer is to come."""
        return self._report.is_busy or self._hang.is_busy

    def close(self) -> None:
        """End the commands that run."""
        self._report.close()
        self._hang.close()

    def _take(self) -> None:
        if (answer := self._hang.answer()) is not None:
            found = msgspec.json.decode(answer, type=HangReport).verdicts
            problem = next((one for one in found if not one.is_healthy), None)
            self.stuck = problem.sentence if problem else ""
            self.stuck_key = _key(problem) if problem else ""
        if (answer := self._report.answer()) is not None:
            judgement = msgspec.json.decode(answer, type=Judgement)
            self.failure, self.steps = "", judgement.run.steps
            self.standing.hear(judgement, is_over=self._is_of_whole)
            self.is_done = self._is_of_whole


def _key(verdict: HangVerdict) -> str:
    """Return what stays the same of a verdict while the same is stuck."""
    call = verdict.operation
    words = [verdict.kind, *verdict.ranks, *([call.op, call.group, call.seq] if call else [])]
    return " ".join(map(str, words))
