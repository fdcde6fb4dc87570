"""The report that is made when training ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.api.trainers import report
from dsprof.errors import DsprofError
from tests.factories.trace_files import write_run


def test_a_report_that_takes_too_long_does_not_keep_training_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_PATIENCE_S", 0.0)
    with pytest.raises(DsprofError, match=f"dsprof report {tmp_path}"):
        report._make(tmp_path)


def test_the_page_is_in_the_folder_and_its_text_without_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    write_run(tmp_path, 2)
    made = report._make(tmp_path)
    assert b"dsprof-run" in made.page.read_bytes()
    assert made.page == tmp_path / "report.html"
    assert "2 ranks" in made.text
    assert "\x1b" not in made.text


def test_what_dsprof_says_of_a_folder_without_a_run_is_the_reason(tmp_path: Path) -> None:
    with pytest.raises(DsprofError, match=f"^{tmp_path}: no trace files"):
        report._make(tmp_path)
