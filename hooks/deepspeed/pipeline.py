"""The instructions of a pipeline engine's schedule: their phases, and their micro-batches.

The engine looks each instruction up in a class attribute and binds what it finds, so methods that
are patched by name are never called.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

INSTRUCTIONS = "_INSTRUCTION_MAP"

_USUAL = {"ForwardPass": "forward", "BackwardPass": "backward", "OptimizerStep": "step"}
_OF_A_MICRO_BATCH = frozenset(
    {
        "LoadMicroBatch",
        "ForwardPass",
        "BackwardPass",
        "SendActivation",
        "RecvActivation",
        "SendGrad",
        "RecvGrad",
    }
)


class Schedule:
    """Counts what one engine's stage has run of a schedule."""

    def __init__(self) -> None:
        self._done: Counter[tuple[str, Any]] = Counter()
        self._latest = 0

    def begin(self) -> None:
        """Begin a schedule: of a batch to train or to evaluate."""
        self._done.clear()
        self._latest = 0

    def enter(self, kind: type, arguments: Mapping[str, Any]) -> tuple[str, int]:
        """Return phase and micro-batch of the next instruction.

        A stage runs the instructions of a kind in the order of micro-batches, so the n-th is for
        the n-th; DualPipeV, which gives a rank two stages, says by `phase` for which. Any other
        instruction belongs to the latest micro-batch.
        """
        name = kind.__name__
        if name not in _OF_A_MICRO_BATCH:
            return phase_name(name), self._latest
        key = (name, arguments.get("phase"))
        number = self._done[key]
        self._done[key] += 1
        self._latest = max(self._latest, number)
        return phase_name(name), number


def phase_name(instruction: str) -> str:
    """Return `send activation` for `SendActivation`; the usual phases keep their names."""
    words = re.findall("[A-Z][a-z]+|[A-Z0-9]+(?![a-z])", instruction)
    return _USUAL.get(instruction) or " ".join(words).lower()
