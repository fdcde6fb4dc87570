"""`--epoch` of all commands, and `epoch=` of `dsprof.load`, choose the same start of a job."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import dsprof
from dsprof.__main__ import main
from dsprof.errors import TraceError
from dsprof.trace.schema import EXIT
from tests.factories.epochs import Start, write


@pytest.fixture
def restarted(tmp_path: Path) -> Path:
    """Rank 1 of 2 crashed; then 4 ranks finished."""
    crashed = Start(0, ends=((EXIT, ""), (EXIT, "ValueError")))
    return write(tmp_path / "run", crashed, Start(30, world_size=4))


def test_hang(restarted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hang", str(restarted)]) == 0
    assert main(["hang", str(restarted), "--epoch", "1"]) == 1
    assert "Rank 1" in capsys.readouterr().out


@pytest.mark.parametrize(("chosen", "ranks"), [((), "0123"), (("--epoch", "1"), "01")])
@pytest.mark.parametrize("form", ["csv", "chrome"])
def test_export(restarted: Path, form: str, chosen: tuple[str, ...], ranks: str) -> None:
    out = restarted / "out"
    assert main(["export", str(restarted), "--to", form, "-o", str(out), *chosen]) == 0
    if form == "csv":
        assert {row["rank"] for row in csv.DictReader(out.open())} == set(ranks)
    else:
        assert f"rank {ranks[-1]}" in out.read_text()
        assert f"rank {len(ranks)}" not in out.read_text()


def test_load(restarted: Path) -> None:
    assert {call.rank for call in dsprof.load(restarted).collectives} == {0, 1, 2, 3}
    assert {call.rank for call in dsprof.load(restarted, epoch=1).collectives} == {0, 1}
    for missing in (0, 3):
        with pytest.raises(TraceError, match=f"no epoch {missing}: the newest run has 2 epochs"):
            dsprof.load(restarted, epoch=missing)
