"""An extension of griffe, by which mkdocstrings reads the API: fields and defaults of options.

The comment of a field says what it is. An option that is left out of a call shows the default of
its setting.
"""

from __future__ import annotations

import ast
from typing import Any

import griffe

from dsprof.config import FIELDS


class SiteFields(griffe.Extension):
    """Adds a table of fields to each class."""

    def on_class_members(self, *, cls: griffe.Class, node: Any, **_: Any) -> None:
        """Describe the fields in the docstring of their class."""
        if cls.docstring is None or not isinstance(node, ast.ClassDef):
            return
        lines = cls.filepath.read_text("utf-8").splitlines()  # type: ignore[union-attr]
        fields = [
            f"    {one.target.id}: {_described(one, lines)}"
            for one in node.body
            if isinstance(one, ast.AnnAssign)
            and isinstance(one.target, ast.Name)
            and not one.target.id.startswith("_")
        ]
        if fields:
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(fields)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Show the defaults of settings."""
        for parameter in func.parameters:
            if str(parameter.default) == "_NOT_GIVEN":
                parameter.default = repr(FIELDS[parameter.name].default)


def _described(field: ast.AnnAssign, lines: list[str]) -> str:
    comment = lines[(field.end_lineno or 1) - 1].encode()[field.end_col_offset or 0 :].decode()
    text = comment.partition("# ")[2]
    if field.value is None:
        return text
    return f"{text} (default: `{ast.unparse(field.value)}`)".strip()
