"""`dsprof completion`: what the shell offers."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial
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


ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'autoload -Uz compinit; compinit -u -D; eval "$(<complete)"'
zpty -w shell 'compadd() {
  local -a hits
  builtin compadd -O hits "$@"
  print -rl -- $hits >> offered
  builtin compadd "$@"
}'
zpty -w shell 'leave() { exit }; zle -N leave; bindkey "^I" complete-word; bindkey "^X" leave'
zpty -w -n shell "$1"$'\t\x18'
while zpty -r shell line; do :; done
"""
"""Types a line and a tab into a zsh on a terminal of its own, and keeps what is offered."""


def offered_by(shell: str, folder: Path, text: str, line: str) -> set[str]:
    """What zsh or fish offers at the end of a line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (folder / "complete").write_text(text)
    if shell == "zsh":
        (folder / "offered").write_text("")
        command = ["zsh", "-fc", ZSH, "zsh", line]
    else:
        command = ["fish", "--no-config", "-c", "source complete; complete -C $argv[1]", line]
    home = {**os.environ, "HOME": str(folder), "TERM": "xterm"}
    done = subprocess.run(
        command, cwd=folder, env=home, capture_output=True, text=True, timeout=60, check=True
    )
    said = (folder / "offered").read_text() if shell == "zsh" else done.stdout
    return {word.partition("\t")[0].rstrip("/") for word in said.split("\n")} - {""}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_the_same(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], shell: str
) -> None:
    text = script(shell, capsysbinary)
    (tmp_path / "traces").mkdir()
    ask = partial(offered_by, shell, tmp_path, text)
    assert ask("dsprof ") >= {command.name for command in COMMANDS}
    assert ask("dsprof report --o") == {"--open", "--output"}
    assert ask("dsprof completion ") == {"bash", "zsh", "fish"}
    assert ask("dsprof export x --to ") == {"perfetto", "chrome", "csv", "parquet"}
    assert ask("dsprof report tr") == {"traces"}


def test_another_shell_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bsh"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dsprof: unknown SHELL value 'bsh' - did you mean 'bash'?")
