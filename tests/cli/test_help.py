"""Help, version, and what a command line may import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.__main__ import main
from dsprof._version import __version__
from dsprof.cli import COMMANDS
from dsprof.config import FIELDS
from tests.cli.command import ROOT, dsprof, environment


def test_the_first_page_names_every_command(tmp_path: Path) -> None:
    done = dsprof("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(command.help in done.stdout for command in COMMANDS)


def test_settings_with_few_values_list_them(tmp_path: Path) -> None:
    page = dsprof("run", "--help", cwd=tmp_path).stdout
    assert "--capture-signal {none,SIGUSR1,SIGUSR2}\n" in page
    assert "--hang-after VALUE " in page


def test_without_arguments_it_prints_the_first_page(
    tmp_path: Path,
) -> None:
    bare, asked = dsprof(cwd=tmp_path), dsprof("--help", cwd=tmp_path)
    assert (bare.returncode, bare.stdout, bare.stderr) == (0, asked.stdout, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reprot", "x"], "unknown command 'reprot' - did you mean 'report'? (see dsprof --help)"),
        (["--verson"], "unknown option '--verson' - did you mean '--version'? (see dsprof --help)"),
        (
            ["check", "--bugdet=budget.yaml", "run"],
            "unknown option '--bugdet' - did you mean '--budget'? (see dsprof check --help)",
        ),
        (
            ["run", "--stpes", "3", "--", "true", "--formt"],
            "unknown option '--stpes' - did you mean '--steps'? (see dsprof run --help)",
        ),
    ],
)
def test_what_is_misspelt_is_told_by_the_command_that_was_meant(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"dsprof: {message}\n"


def test_one_argument_too_many_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "one", "two", "three"]) == 2
    assert "unexpected argument 'three' (see dsprof compare --help)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "takes_plugins"), [("report", True), ("compare", False), ("hang", False)]
)
def test_help_names_the_formats_of_plugins_only_where_they_are_taken(
    capsys: pytest.CaptureFixture[str], name: str, takes_plugins: bool
) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert ("html, text, json or a plugin's (default" in shown) is takes_plugins
    assert ("html, text or json (default" in shown) is not takes_plugins


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_command_explains_itself(tmp_path: Path, name: str) -> None:
    done = dsprof(name, "--help", cwd=tmp_path, env=environment(COLUMNS="80"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: dsprof {name} ")
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_run_has_an_option_for_every_setting(tmp_path: Path) -> None:
    shown = dsprof("run", "--help", cwd=tmp_path).stdout
    assert all(f"  --{name.replace('_', '-')}" in shown for name in FIELDS)


def test_the_version(tmp_path: Path) -> None:
    assert dsprof("--version", cwd=tmp_path).stdout == f"dsprof {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["bench", "--sizes", "none"], ["doctor"], ["env"], ["report", "missing.json"]]
)
def test_no_command_imports_torch_or_the_session(tmp_path: Path, arguments: list[str]) -> None:
    code = (
        "import sys; from dsprof.__main__ import main\n"
        f"main({arguments})\n"
        "heavy = {'torch', 'deepspeed', 'dsprof.recording.session', 'plotly', 'jinja2', 'yaml'}\n"
        "print('heavy:', sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("heavy: []\n")


def test_the_help_of_report_names_every_kind_of_file(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "files.md").read_text()
    table = page.partition("|---|")[2].partition("\n\n")[0]
    kinds = [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()[1:]]
    assert "memory snapshot" in kinds
    shown = dsprof("report", "--help", cwd=tmp_path).stdout
    assert [kind for kind in kinds if f"  {kind}  " not in shown] == []
