"""What a renderer is: one way to show a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dsprof.diagnosis.model import Diagnosis


@dataclass(frozen=True, slots=True)
class Options:
    """Wishes of the reader; a renderer takes from them what concerns it."""

    plotlyjs: bytes | None = None  # a smaller plotly.js; None: the installed package's own
    width: int | None = None  # columns of the terminal; None: DEFAULT_WIDTH
    colour: bool = False  # the output goes to a terminal that shows ANSI colours


class Renderer(Protocol):
    """Shows a diagnosis in one format; the same input always gives the same bytes."""

    @property
    def name(self) -> str:
        """What the format is called on the command line."""

    @property
    def suffix(self) -> str:
        """Ending of a file of this format, with the dot."""

    def render(self, diagnosis: Diagnosis, options: Options) -> bytes:
        """Return the whole document."""
        ...
