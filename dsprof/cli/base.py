"""Sub-commands, and the parser that answers mistakes in one line."""

from __future__ import annotations

import sys
from argparse import (
    PARSER,
    REMAINDER,
    Action,
    ArgumentParser,
    Namespace,
    RawDescriptionHelpFormatter,
)
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Protocol

from dsprof.config.settings import did_you_mean, in_one_line
from dsprof.errors import DsprofError


class Command(Protocol):
    """One sub-command; `dsprof --help` shows `help`, its own help page `description`."""

    @property
    def name(self) -> str:
        """The word after `dsprof`."""

    @property
    def help(self) -> str:
        """A few words."""

    @property
    def description(self) -> str:
        """The help page, with examples."""

    def prepare(self, parser: ArgumentParser) -> None:
        """Add the arguments."""

    def run(self, arguments: Namespace) -> int:
        """Do it and return the exit code.

        Raises:
            DsprofError: a mistake that the user can fix.
        """
        ...


class Parser(ArgumentParser):
    """Keeps the line breaks of descriptions, takes no abbreviations, and raises DsprofError."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False, **settings
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Parse, and refuse what this parser does not know, so that the message names it."""
        args = sys.argv[1:] if args is None else list(args)
        if not any(action.nargs in (PARSER, REMAINDER) for action in self._actions):
            # Before anything that is missing: a misspelt option is often why.
            self._refuse(args[: args.index("--")] if "--" in args else args)
        found, unknown = super().parse_known_args(args, namespace)
        self._refuse(unknown)
        if unknown:
            self.error(f"unexpected argument '{in_one_line(unknown[0])}'")
        return found, unknown

    def _refuse(self, args: Iterable[str]) -> None:
        """Report the first long option that is none of this parser."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for name in (text.partition("=")[0] for text in args if text.startswith("--")):
            if name not in (*known, "--"):
                self.error(f"unknown option '{in_one_line(name)}'{did_you_mean(name, known)}")

    def _check_value(self, action: Action, value: Any) -> None:
        """Report a value, or the name of a sub-command, that is none of the choices."""
        if action.choices is not None and value not in action.choices:
            option = "/".join(action.option_strings) or str(action.metavar or "")
            noun = "command" if action.nargs == PARSER else f"{option} value".strip()
            near = did_you_mean(str(value), map(str, action.choices))
            self.error(f"unknown {noun} '{in_one_line(str(value))}'{near}")

    def error(self, message: str) -> NoReturn:
        """Report a mistake in the arguments."""
        raise DsprofError(f"{message} (see {self.prog} --help)")
