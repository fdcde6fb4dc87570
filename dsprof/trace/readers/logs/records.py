"""Lines of a log that a collector or a logger keeps as JSON, or in a table.

An object a line (Docker, journald, Fluentd, loggers of programs), or objects over several lines
(exports of CloudWatch and Google Cloud). Each holds its message under one of a few names. In a
table (CSV) it follows the time.
"""

from __future__ import annotations

import json
import re

_NAMES = r"log|msg|@?message|MESSAGE|textPayload"
_STRING = r'\s*:\s*("(?:[^"\\]|\\.)*")'
_MESSAGE = re.compile(rf'(?<!\\)"(?:{_NAMES}|line)"{_STRING}')
_MEMBER = re.compile(rf'^[ \t]*"(?:{_NAMES})"{_STRING}', re.M)
_RECORD = re.compile(r"\s*(?:[^\s{]+\t[^\s{]*\t)?\{")  # Fluentd writes time and tag before it
_OF_JSON = re.compile(r'\s*(?:["{}\],]|\[\s*$)')
_ROW = re.compile(r'"?\d[\d :.TZ/-]{9,40}"?,"((?:[^"]|"")*)"\s*$')
_OPENS = re.compile(r"\s*[\[{]{1,2}\s*$", re.M)


def is_indented(start: str) -> bool:
    """Say whether a file that begins with `start` holds records of several lines each."""
    return _OPENS.match(start) is not None and _MEMBER.search(start) is not None


def messages(line: str, *, of_indented: bool = False) -> list[str]:
    """Return the lines that were logged as this one: itself, unless it is of a record."""
    if row := _ROW.match(line):
        return [row[1].replace('""', '"')]
    if not (_OF_JSON if of_indented else _RECORD).match(line):
        return [line]
    found = (_MEMBER if of_indented else _MESSAGE).findall(line)
    if not found:
        return [] if of_indented else [line]
    try:
        text: str = json.loads(max(found, key=len), strict=False)
    except ValueError:
        return [line]
    # What cuts long messages may cut a character that JSON writes in two halves.
    return text.encode("utf-8", "replace").decode().splitlines()


def logged(start: str) -> str:
    """Return what was logged of a file that may begin as JSON: nothing of its objects."""
    of_indented = is_indented(start)
    if start[:1] == "[" and not of_indented:
        return start
    found = []
    for line in start.split("\n"):
        lines = messages(line, of_indented=of_indented)
        if lines != [line] or not (line[:1].isspace() or _OF_JSON.match(line)):
            found += lines
    return "\n".join(found)
