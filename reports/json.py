"""A result as JSON: the interface for other programs."""

from __future__ import annotations

from typing import Any

from dsprof.files.json_documents import json_document
from dsprof.reports.base import Format, Options, Renderer


def _document(shown: Any, options: Options) -> bytes:
    """Return indented JSON, UTF-8, with every field and a newline at its end.

    A diagnosis is read back by `dsprof.diagnosis.document.from_json`.
    """
    return json_document(shown) + b"\n"


RENDERER: Renderer[Any] = Format("json", ".json", _document)
