"""What is known of a hang as JSON: the interface for other programs."""

from __future__ import annotations

from dsprof.analysis.run.hang_model import HangReport
from dsprof.files.json_documents import json_document
from dsprof.reports.base import Options


class JsonRenderer:
    """Writes every field."""

    name = "json"
    suffix = ".json"

    def render(self, report: HangReport, /, options: Options) -> bytes:
        """Return indented JSON, UTF-8, with a newline at its end."""
        return json_document(report) + b"\n"
