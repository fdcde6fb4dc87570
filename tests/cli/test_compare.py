"""`dsprof compare`: folders, files and saved diagnoses; formats; mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsprof.__main__ import main
from tests.factories.trace_files import write_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders of traces below the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        write_run(tmp_path / name)
    return tmp_path


def test_folders_files_and_saved_diagnoses_are_the_same_to_it(
    runs: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for name in ("one", "two"):
        assert main(["report", name, "--format", "json", "-o", f"{name}.json"]) == 0
    capsysbinary.readouterr()
    verdicts = []
    for pair in (["one", "two"], ["one.json", "two.json"], ["one.json", "two"]):
        assert main(["compare", *pair, "--format", "json"]) == 0
        read = json.loads(capsysbinary.readouterr().out)
        assert [read["before"]["name"], read["after"]["name"]] == pair
        verdicts.append(read["verdict"])
    assert main(["compare", "one/trace.rank00000.json", "two", "--format", "json"]) == 0
    assert json.loads(capsysbinary.readouterr().out)["before"]["run"]["ranks"] == [0]
    assert len(set(verdicts)) == 1


def test_text_goes_to_the_terminal_and_begins_with_the_verdict(
    runs: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["compare", "one", "two"]) == 0
    verdict, summary = capsysbinary.readouterr().out.decode().splitlines()[:2]
    assert verdict.startswith("Step times not compared: ")
    assert summary.endswith("; environment and versions are the same.")
    assert {path.name for path in runs.iterdir()} == {"one", "two"}


def test_a_part_that_was_compared_is_told(
    runs: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["compare", "one", "two", "--steps", "1:3"]) == 0
    words = capsysbinary.readouterr().out.decode().split()
    assert " ".join(words).count("UTC | selected: steps 1 to 2") == 2


def test_the_page_is_written_and_the_text_is_printed(
    runs: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["compare", "one", "two", "--format", "html"]) == 0
    assert b"Step times not compared: " in capsysbinary.readouterr().out
    assert (runs / "comparison.html").read_bytes().startswith(b"<!doctype html>")


@pytest.mark.parametrize(
    ("name", "begins"),
    [("page.HTML", b"<!doctype html>"), ("found.json", b"{"), ("found.txt", b"Step times")],
)
def test_the_name_of_a_file_says_its_format(runs: Path, name: str, begins: bytes) -> None:
    assert main(["compare", "one", "two", "-q", "-o", name]) == 0
    assert (runs / name).read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("one", "required: AFTER"),
        ("one missing", "missing"),
        ("one two --format pdf", "unknown --format value 'pdf'; known: text, html, json"),
        (
            "one/trace.rank00000.json two -o one/trace.rank00000.json",
            "it is an input file",
        ),
    ],
)
def test_mistakes_are_one_line_each(
    runs: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    assert main(["compare", *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
