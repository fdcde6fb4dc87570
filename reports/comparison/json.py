"""A comparison as JSON: the interface for other programs."""

from __future__ import annotations

from dsprof.comparison.model import Comparison, to_json
from dsprof.reports.base import Options


class JsonRenderer:
    """Writes every field of the comparison."""

    name = "json"
    suffix = ".json"

    def render(self, comparison: Comparison, /, options: Options) -> bytes:
        """Return indented JSON, UTF-8, with a newline at its end."""
        return to_json(comparison) + b"\n"
