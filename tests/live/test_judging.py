"""Findings of a run that goes on: none flickers, and the last ones are the report's."""

import subprocess
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import msgspec
import pytest

from dsprof.analysis.hang.model import HangReport, HangVerdict, Operation
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.run import RuleInfo
from dsprof.environment import own_command
from dsprof.errors import DsprofError
from dsprof.live import judging
from dsprof.live.judging import Asked, Judge, Standing
from tests.factories import diagnosis as make
from tests.live.test_screen import finding


def judged(*rules: str) -> Diagnosis:
    empty = make.empty()
    empty.findings = [finding(rule) for rule in rules]
    empty.rules = [RuleInfo(rule="at-the-end", title="", why="", category="", judges_end=True)]
    return empty


def shown(standing: Standing, judgements: Iterable[str]) -> list[str]:
    """Let it hear judgements, each of rules of one letter, and return what stands after each."""
    found = []
    for rules in judgements:
        standing.hear(judged(*rules), is_over=False)
        found.append("".join(sorted(one.rule for one in standing.findings)))
    return found


def test_a_finding_is_raised_and_withdrawn_by_two_judgements_in_a_row() -> None:
    heard = ["a", "", "a", "a", "", "a", "", "", ""]
    assert shown(Standing(), heard) == ["", "", "", "a", "a", "a", "a", "", ""]


def test_a_withdrawn_finding_does_not_come_back_before_the_end() -> None:
    standing = Standing()
    assert shown(standing, ["a", "a", "", "", "a", "a", "ab", "ab"])[-1] == "b"
    standing.hear(judged("a"), is_over=True)
    assert [one.rule for one in standing.findings] == ["a"]


def test_rules_that_judge_the_end_wait_for_it() -> None:
    standing = Standing()
    for _ in range(3):
        standing.hear(judged("a", "at-the-end"), is_over=False)
    assert [one.rule for one in standing.findings] == ["a"]
    assert standing.waiting == ["at-the-end"]
    standing.hear(judged("a", "at-the-end"), is_over=True)
    assert [one.rule for one in standing.findings] == ["a", "at-the-end"]
    assert standing.waiting == []


def test_a_command_beside_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "msgspec.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(tmp_path)
    asked = Asked("--version")
    asked.ask()
    while (found := asked.answer()) is None:
        assert asked.is_busy
    assert found.startswith(b"dsprof ")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("code", [0, 2])
def test_an_answer_that_cannot_be_read_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(own_command, "_PROGRAM", f"print('x'); raise SystemExit({code})")
    judge = Judge([tmp_path])
    while not judge.failure:
        judge.poll(is_over=False, is_stalled=True)
    judge.close()
    assert judge.stuck == ""


def test_a_command_that_cannot_start_now_is_due_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    asked = Asked("--version")
    asked.ask()
    assert (asked.is_busy, asked.is_due) == (False, False)


def test_a_judgement_of_the_whole_run_that_fails_is_not_repeated_at_once(tmp_path: Path) -> None:
    judge = Judge([tmp_path / "absent"])
    judge.poll(is_over=True, is_stalled=False)
    while not judge.failure:
        judge.poll(is_over=True, is_stalled=False)
    assert "No such file" in judge.failure
    assert not judge.is_busy


def test_a_run_that_goes_on_after_its_end_is_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a rank was thought to be gone, and writes again."""
    said = msgspec.json.encode({"run": {"steps": 3}, "findings": [], "rules": []}).decode()
    monkeypatch.setattr(own_command, "_PROGRAM", f"print({said!r})")
    monkeypatch.setattr(judging, "monotonic", count().__next__)
    judge = Judge([tmp_path])

    def until_done() -> None:
        while not judge.is_done:
            judge.poll(is_over=True, is_stalled=False)

    until_done()
    judge.steps = None
    while judge.steps is None:
        judge.poll(is_over=False, is_stalled=False)
        assert not judge.is_done
    until_done()
    judge.close()


def test_what_is_stuck_is_the_same_though_the_wait_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(seq: int, waited_s: int) -> tuple[str, str]:
        call = Operation("all_reduce", "world", seq)
        sentence = f"Rank 1 never came; rank 0 waited {waited_s} s"
        verdict = HangVerdict(kind="never_entered", ranks=(1,), operation=call, sentence=sentence)
        said = msgspec.json.encode(HangReport(verdicts=[verdict])).decode()
        monkeypatch.setattr(own_command, "_PROGRAM", f"print({said!r})")
        judge = Judge([tmp_path])
        while not judge.stuck:
            judge.poll(is_over=False, is_stalled=True)
        found = judge.stuck, judge.stuck_key
        judge.poll(is_over=False, is_stalled=False)
        assert (judge.stuck, judge.stuck_key) == ("", "")
        judge.close()
        return found

    first, later, other = asked(4, 30), asked(4, 75), asked(5, 30)
    assert first[0] != later[0]
    assert first[1] == later[1] != other[1]


def test_findings_of_an_end_that_was_none_do_not_stand() -> None:
    standing = Standing()
    standing.hear(judged("a", "at-the-end"), is_over=True)
    standing.hear(judged("a", "at-the-end"), is_over=False)
    assert [one.rule for one in standing.findings] == ["a"]


def test_a_command_beside_answers_or_says_why_not(tmp_path: Path) -> None:
    def answer(*arguments: str) -> bytes:
        asked = Asked(*arguments)
        asked.ask()
        while (found := asked.answer()) is None:
            assert asked.is_busy
        assert not asked.is_due
        return found

    assert answer("--version").startswith(b"dsprof ")
    with pytest.raises(DsprofError, match="No such file"):
        answer("report", str(tmp_path / "absent"), "-q")


def test_judgements_are_close_together_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    used_s = count(step=2)
    monkeypatch.setattr(judging, "used_by_children_s", lambda: next(used_s))
    asked = Asked("--version")

    def rest_s() -> int:
        monkeypatch.setattr(judging, "monotonic", lambda: 0)
        asked.ask()
        while asked.answer() is None:
            pass
        monkeypatch.setattr(judging, "monotonic", count().__next__)
        return next(second for second in count() if asked.is_due)

    assert [rest_s() for _ in range(7)] == [2, 4, 8, 16, 32, 50, 50]
