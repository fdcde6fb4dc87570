"""A result as JSON: the interface for other programs."""

from __future__ import annotations

from typing import Any

from dsprof.diagnosis.model import Diagnosis
from dsprof.files.json_documents import json_document
from dsprof.reports.base import Options, Renderer


class JsonRenderer:
    """Writes every field; a diagnosis is read back by `dsprof.diagnosis.model.from_json`."""

    name = "json"
    suffix = ".json"

    def render(self, shown: Any, /, options: Options) -> bytes:
        """Return indented JSON, UTF-8, with a newline at its end."""
        return json_document(shown) + b"\n"


RENDERER: Renderer[Diagnosis] = JsonRenderer()
