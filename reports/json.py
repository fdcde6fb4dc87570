"""The diagnosis as JSON: the interface for other programs."""

from __future__ import annotations

from dsprof.diagnosis.model import Diagnosis, to_json
from dsprof.reports.base import Options, Renderer


class JsonRenderer:
    """Writes what `dsprof.diagnosis.model.from_json` reads back."""

    name = "json"
    suffix = ".json"

    def render(self, diagnosis: Diagnosis, options: Options) -> bytes:
        """Return indented JSON, UTF-8, with a newline at its end."""
        return to_json(diagnosis) + b"\n"


RENDERER: Renderer[Diagnosis] = JsonRenderer()
