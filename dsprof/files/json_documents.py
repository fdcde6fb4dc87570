"""Results for other programs."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_STEERING = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
"""Characters that JSON lets pass and a terminal obeys: C1 controls, directions, invisible marks."""


def json_document(value: Any) -> bytes:
    """Encode a struct as `json_line` does, indented."""
    return msgspec.json.format(json_line(value), indent=1)


def json_line(value: Any) -> bytes:
    """Encode as JSON in UTF-8 that cannot steer a terminal.

    Names of files that are not UTF-8 are written with escapes, as a shell shows them.
    """
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_unicode(msgspec.to_builtins(value)))
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", data.decode()).encode()


def _unicode(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_unicode(key): _unicode(part) for key, part in value.items()}
        case list() | tuple():
            return [_unicode(part) for part in value]
    return value
