"""A few of the runs of `make hangs`, one a way to go wrong; the verdict is what was done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hangs.__main__ import judge
from tests.hangs.draw import Draw
from tests.hangs.launch import run, start_launcher

pytestmark = [pytest.mark.dist, pytest.mark.alone]


@pytest.mark.parametrize(
    "case", ["killed", "sleeps", "other_dtype", "other_order", "holds_interpreter", "straggler"]
)
def test_the_verdict_names_what_was_done(case: str, tmp_path: Path) -> None:
    draw, folder = Draw.of(case, seed=0), tmp_path / case
    row = judge(case, draw, folder, run(start_launcher(), case, draw, folder))
    assert not row["problems"], row
