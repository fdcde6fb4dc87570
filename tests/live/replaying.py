"""Judges a recorded run as often as `dsprof watch` might have while it grew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Finding, Status
from dsprof.live.judging import Standing
from dsprof.trace.run import find_run

CUTS = 12


def replayed(
    whole: Mapping[str, bytes], folder: Path, starts: Sequence[float] = ()
) -> Iterator[Diagnosis]:
    """Yield the judgement of the files at each cut, the last one of the whole run.

    A cut is anywhere, also within a line, and in each file at another place. A file appears when
    its share of the run, in `starts`, is written.
    """
    folder.mkdir()
    chance = Random(11)
    for cut in range(1, CUTS + 1):
        for place, (name, content) in enumerate(whole.items()):
            share = 1.0 if cut == CUTS else (cut + chance.uniform(-0.4, 0.4)) / CUTS
            if not starts or share >= starts[place]:
                with (folder / name).open("ab") as file:
                    file.write(content[file.tell() : round(share * len(content))])
        yield diagnose(find_run([folder]), is_running=cut < CUTS)


def failed(diagnosis: Diagnosis) -> list[Finding]:
    return [one for one in diagnosis.findings if one.status is Status.FAIL]


def withdrawals(shown: Iterable[Iterable[Finding]]) -> Counter[str]:
    """Return how often each rule was shown, and then no longer."""
    found, before = Counter[str](), set[str]()
    for findings in shown:
        rules = {one.rule for one in findings}
        found.update(before - rules)
        before = rules
    return found


def assert_calm(judgements: Sequence[Diagnosis], report: Diagnosis) -> None:
    """No finding is raised and withdrawn more than once, and the last are those of the report."""
    standing, shown = Standing(), list[list[Finding]]()
    for place, diagnosis in enumerate(judgements, 1):
        standing.hear(diagnosis, is_over=place == len(judgements))
        shown.append(standing.findings)
    assert max(withdrawals(shown).values(), default=0) <= 1
    assert shown[-1] == failed(report)
