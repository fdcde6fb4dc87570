"""Errors that reach a person: each says what happened, where, and what to do next."""

from __future__ import annotations

from shlex import quote


class DsprofError(Exception):
    """A mistake that the user can fix; the command line prints it as it is and exits with 2.

    Each argument is one line, in which a name cannot break the line nor steer the terminal.
    """

    def __str__(self) -> str:
        return "\n".join(escaped(str(line)) for line in self.args)


class ConfigError(DsprofError):
    """A configuration file, variable or option that cannot be used."""


class TraceError(DsprofError):
    """A trace, or a folder of traces, that cannot be read."""


class OutputError(DsprofError):
    """A result that cannot be written where it was asked for."""


def message_of(error: BaseException) -> str:
    """Return what an error says, which code of others computes."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001
        return "it has no message"


def escaped(text: str) -> str:
    """Return text with escapes such as `\\x1b` for what a terminal would not print."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def argument(path: object) -> str:
    """Return a path for a command that users copy into their shell."""
    return quote(escaped(str(path)))
