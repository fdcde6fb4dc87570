"""`dsprof completion`: what the shell offers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dsprof.__main__ import main
from dsprof.cli import COMMANDS


def script(shell: str, capsysbinary: pytest.CaptureFixture[bytes]) -> str:
    assert main(["completion", shell]) == 0
    return capsysbinary.readouterr().out.decode()


def offered(folder: Path, text: str, *words: str) -> list[str]:
    """What bash offers at the end of a line of these words."""
    (folder / "complete").write_text(text)
    line = " ".join(words)
    asked = (
        f"source complete; COMP_WORDS=({line} ''); COMP_CWORD={len(words)}\n"
        if not words[-1].startswith("-")
        else f"source complete; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
    )
    ask = f"{asked}COMP_LINE='{line}'; _shtab_dsprof; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", ask], cwd=folder, capture_output=True, text=True)
    return done.stdout.split()


def test_bash_completes_commands_options_values_and_files(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = script("bash", capsysbinary)
    (tmp_path / "traces").mkdir()
    assert set(offered(tmp_path, text, "dsprof")) >= {command.name for command in COMMANDS}
    assert {"--format", "--open"} <= set(offered(tmp_path, text, "dsprof", "report", "--"))
    assert "--budget" not in offered(tmp_path, text, "dsprof", "report", "--")
    assert offered(tmp_path, text, "dsprof", "completion") == ["bash", "zsh", "fish"]
    assert "traces" in offered(tmp_path, text, "dsprof", "report")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_that_they_can_read(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], shell: str
) -> None:
    text = script(shell, capsysbinary)
    assert all(command.name in text for command in COMMANDS)
    if shutil.which(shell):
        (tmp_path / "complete").write_text(text)
        subprocess.run([shell, "-n", "complete"], cwd=tmp_path, check=True)


def test_another_shell_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bsh"]) == 2
    assert capsys.readouterr().err.startswith("dsprof: unknown value 'bsh' - did you mean 'bash'?")
