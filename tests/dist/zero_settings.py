"""The ZeRO settings that decide which collectives DeepSpeed issues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple


class ZeroSetting(NamedTuple):
    """One row of the truth table."""

    stage: int
    reduce_scatter: bool
    multi_rank: bool
    overlap: bool

    def __str__(self) -> str:
        flags = [name for name in self._fields[1:] if getattr(self, name)]
        return "-".join([f"stage{self.stage}", *flags])


def zero_settings(stages: Iterable[int]) -> Iterator[ZeroSetting]:
    """Every combination of the flags; they mean nothing at stage 0."""
    for stage in stages:
        if stage == 0:
            yield ZeroSetting(0, True, True, False)
        else:
            yield from (ZeroSetting(stage, *flags) for flags in product([True, False], repeat=3))
