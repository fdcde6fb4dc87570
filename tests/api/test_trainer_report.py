"""The report that is made when training ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.api.trainers import report
from dsprof.errors import DsprofError


def test_a_report_that_takes_too_long_does_not_keep_training_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_PATIENCE_S", 0.0)
    with pytest.raises(DsprofError, match=f"dsprof report {tmp_path}"):
        report._make(tmp_path)
