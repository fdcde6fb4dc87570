"""The verdict and what failed, in Markdown: for comments on pull requests."""

from __future__ import annotations

import re

from dsprof.api import Diagnosis, Options, Renderer, Status


class MarkdownRenderer:
    """Writes a heading, the verdict, and a line for each problem."""

    name = "markdown"
    suffix = ".md"

    def render(self, diagnosis: Diagnosis, options: Options) -> bytes:
        """Return the document in UTF-8."""
        failed = [one for one in diagnosis.findings if one.status is Status.FAIL]
        lines = [f"- **{_escaped(one.title)}**: {_escaped(one.summary)}" for one in failed]
        return "\n".join(["## dsprof", "", _escaped(diagnosis.verdict), "", *lines, ""]).encode()


def _escaped(text: str) -> str:
    """Return text that nothing in Markdown or HTML reads as its own: it may come from a trace."""
    return re.sub(r"([\\`*_{}\[\]()<>#+!|&~])", r"\\\1", " ".join(text.split()))


RENDERER: Renderer[Diagnosis] = MarkdownRenderer()
