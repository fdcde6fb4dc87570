"""Errors that reach a person: each says what happened, where, and what to do next."""

from __future__ import annotations


class DsprofError(Exception):
    """A mistake that the user can mend; the command line prints it as it is and exits with 2."""


class ConfigError(DsprofError):
    """A configuration file, variable or option that cannot be used."""


class TraceError(DsprofError):
    """A trace, or a folder of traces, that cannot be read."""


class OutputError(DsprofError):
    """A result that cannot be written where it was asked for."""
