"""`dsprof completion`: what a shell needs to complete dsprof's commands, options and files."""

from __future__ import annotations

from argparse import PARSER, ArgumentParser, Namespace
from pathlib import Path

from dsprof.cli.loading import local_path, trace_path
from dsprof.cli.output import print_bytes


class CompletionCommand:
    """Prints the script that a shell reads."""

    name = "completion"
    help = "print the completion script for a shell"
    description = """\
Print a script with which a shell completes commands, options and files.

  eval "$(dsprof completion bash)"            this shell only

To keep it, write it to where the shell looks: for bash
~/.local/share/bash-completion/completions/dsprof, for zsh _dsprof in a folder
of $fpath, for fish ~/.config/fish/completions/dsprof.fish."""

    def prepare(self, parser: ArgumentParser) -> None:
        parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL")

    def run(self, arguments: Namespace) -> int:
        """Print the script."""
        import shtab

        _complete_files(arguments.root, shtab.FILE)
        print_bytes(shtab.complete(arguments.root, shell=arguments.shell).encode())
        return 0


def _complete_files(parser: ArgumentParser, files: object) -> None:
    for action in parser._actions:
        if action.type in (Path, trace_path, local_path):
            action.complete = files  # type: ignore[attr-defined]
        elif action.nargs == PARSER and isinstance(action.choices, dict):
            for command in action.choices.values():
                _complete_files(command, files)
