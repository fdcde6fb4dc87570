"""What `dsprof hang` says beyond the verdict."""

from __future__ import annotations

from pathlib import Path

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.hang_report import hang_report
from dsprof.reports.base import render_in
from dsprof.reports.hang import RENDERERS
from dsprof.trace.run import find_run
from tests.factories.hangs import write_killed
from tests.reports.pages import parse


def test_a_hang_has_the_remedy_of_the_finding(tmp_path: Path) -> None:
    write_killed(tmp_path, 0, 1)
    report = hang_report([tmp_path], None, is_live=False)
    (verdict,) = report.verdicts
    found = {one.rule: one for one in diagnose(find_run([tmp_path])).findings}
    assert verdict.remedy
    assert verdict.remedy == found["stuck-collective"].action
    for form in ("text", "html", "json"):
        shown = render_in(RENDERERS, report, form, width=10_000).decode()
        assert verdict.remedy.split(".")[0] in shown


def test_the_page_of_a_hang_says_its_verdict_once(tmp_path: Path) -> None:
    write_killed(tmp_path, 0, 1)
    report = hang_report([tmp_path], None, is_live=False)
    page = parse(render_in(RENDERERS, report, "html"))
    headings = [one.text for level in ("h1", "h3", "h4") for one in page.all(level)]
    assert headings.count(report.verdicts[0].sentence) == 1


def test_a_run_that_is_not_stuck_has_no_remedy(tmp_path: Path) -> None:
    write_killed(tmp_path)
    assert [one.remedy for one in hang_report([tmp_path], None, is_live=False).verdicts] == [""]
