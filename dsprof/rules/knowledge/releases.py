"""Releases as numbers that compare: "0.19.8+cpu" is (0, 19, 8)."""

from __future__ import annotations

import re

Release = tuple[int, ...]


def release(version: str) -> Release | None:
    """Return the three numbers that a version begins with; None where it does not."""
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", version)
    return tuple(map(int, numbers.groups())) if numbers else None


def version(text: str) -> Release:
    """Return all numbers that a version begins with: "7.13" is (7, 13), "none" is ()."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9})*", text)
    return tuple(map(int, found[0].split("."))) if found else ()
