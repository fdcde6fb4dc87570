"""`dsprof rules` and `dsprof explain`."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from dsprof.__main__ import main
from dsprof.config import PLUGINS_VARIABLE
from dsprof.rules import all_rules


def test_explain_prints_the_page_of_every_rule(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    for rule in all_rules():
        assert main(["explain", rule.meta.id]) == 0
        page = capsysbinary.readouterr().out.decode()
        assert page.startswith(f"{rule.meta.id}\n"), rule.meta.id
        assert not re.search(r"`|\*\*|\]\(|^#|\| ?---", page, re.MULTILINE), rule.meta.id


def test_a_page_is_printed_in_a_notebook() -> None:
    """Its standard output takes text only."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["explain", "late-rank"]) == 0
    assert out.getvalue().startswith("late-rank\n")


def test_only_rules_of_plugins_name_a_package(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGINS_VARIABLE, "1")  # the command sets it for all that follows
    assert main(["rules", "--no-plugins"]) == 0
    lines = capsysbinary.readouterr().out.decode().splitlines()
    assert "  late-rank: Ranks wait for a late rank" in lines
    assert not [line for line in lines if line.strip().startswith("from ")]


def test_a_misspelt_rule_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "late-rnak"]) == 2
    assert capsys.readouterr().err.endswith("'late-rnak' - did you mean 'late-rank'?\n")
    assert main(["explain", "nothing of the kind"]) == 2
    assert capsys.readouterr().err.endswith("'nothing of the kind' (see dsprof rules)\n")
