"""What a sub-command is, and the parser that answers mistakes in one line."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import NoReturn, Protocol

from dsprof.errors import DsprofError


class Command(Protocol):
    """One sub-command; `dsprof --help` shows `help`, its own help page `description`."""

    @property
    def name(self) -> str:
        """What is typed after `dsprof`."""

    @property
    def help(self) -> str:
        """A few words."""

    @property
    def description(self) -> str:
        """What it does, with examples."""

    def prepare(self, parser: ArgumentParser) -> None:
        """Add the arguments."""

    def run(self, arguments: Namespace) -> int:
        """Do it and return the exit code.

        Raises:
            DsprofError: a mistake that the user can mend.
        """
        ...


class Parser(ArgumentParser):
    """Keeps the line breaks of descriptions, takes no abbreviations, and raises DsprofError."""

    def __init__(self, **settings: object) -> None:
        super().__init__(
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **settings,  # type: ignore[arg-type]
        )

    def error(self, message: str) -> NoReturn:
        """Report a mistake in the arguments."""
        raise DsprofError(f"{message} (see {self.prog} --help)")
