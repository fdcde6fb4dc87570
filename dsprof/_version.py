"""The version of dsprof, for everyone inside."""

__version__ = "0.1.0"
