"""The configuration that DeepSpeed prints in a log when it makes an engine."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.readers.logs.prefix import before_block, without
from dsprof.trace.schema import EngineConfig

_HEADING = re.compile(
    r"(?P<before>.{0,300}?)(?:\[[\d :,-]+\] )?(?:\[\w+\] )?"
    r"\[config\.py:\d+:print\w*\]\s+json = \{\s*$"
)
_OF_JSON = re.compile(  # others begin with dates and tags in brackets
    r"\s*(?:\"|(?:[\[{]|[\]}]+,?|(?:[\[{].{0,500}[\]}]|-?\d[\d.e+-]*|true|false|null),?)\s*$)"
)
_MOST_LINES, _LONGEST_LINE = 2000, 1000
_DTYPES = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16"}


class PrintedConfig:
    """Puts the lines of the first one together; those of others may lie in between.

    `written` is what the user wrote; empty unless all of it is there.
    """

    def __init__(self) -> None:
        self.written: dict[str, Any] = {}
        self.is_open = False
        self._lines: list[str] = []
        self._before = before_block("")  # a line

    def take(self, text: str) -> bool:
        """Take a line; say whether it was of the configuration."""
        if not self.is_open:
            if self._lines or "json = {" not in text or not (heading := _HEADING.match(text)):
                return False
            self.is_open, self._lines = True, ["{"]
            self._before = before_block(heading["before"])
            return True
        text = without(self._before, text)
        if not _OF_JSON.match(text):
            return False
        self._lines.append(text[:_LONGEST_LINE])
        if text.startswith("}") or len(self._lines) > _MOST_LINES:
            self.is_open = False
            self._decode()
        return True

    def _decode(self) -> None:
        try:
            self.written = msgspec.json.decode("\n".join(self._lines), type=dict[str, Any])
        except UNDECODABLE:
            return


def engine_of(written: dict[str, Any]) -> EngineConfig:
    """Return the engine that took a configuration; what it made of it, a log does not tell."""
    switched_on = [name for name in _DTYPES if _is_on(written.get(name))]
    dtype = _DTYPES[switched_on[0]] if switched_on else "float32"
    return EngineConfig(1, written, effective=written, parameter_dtype=dtype)


def _is_on(section: Any) -> bool:
    return isinstance(section, dict) and section.get("enabled") is True
