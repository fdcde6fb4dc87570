"""Words that several rules use for the same thing."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_NAMED = 12


def listed(ranks: Sequence[int]) -> str:
    """Name ranks, the first twelve one by one: `3, 7 and 12 more`."""
    shown = ", ".join(map(str, ranks[:_MOST_NAMED]))
    return shown if len(ranks) <= _MOST_NAMED else f"{shown} and {len(ranks) - _MOST_NAMED} more"


def named(ranks: Sequence[int]) -> str:
    """Name ranks as what they are: `rank 3`, `ranks 3, 7`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {listed(ranks)}"
