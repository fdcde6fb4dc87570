"""Reads a DeepSpeed configuration file: its values, and the lines on which its keys stand."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

from dsprof.errors import ConfigError
from dsprof.files.inputs import read_input
from dsprof.files.redaction.known_settings import top_level_keys

_LARGEST_BYTES = 1 << 20  # some 1,000 times what configurations have
_DEEPEST = 100
_LONGEST_NUMBER = 300
"""Digits: floating point ends before 10^309, and Python reads no integer of more than 4,300."""

_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*") | (?P<mark>[{}\[\]:,]) | (?P<space>\s+)
    | (?P<comment>(?:\#|//)[^\n]*|/\*.*?\*/) | (?P<word>(?:"|/\*).*|[^\s{}\[\]:,"]+)""",
    re.VERBOSE | re.DOTALL,
)  # what opens and never closes is one word to the end: looked for once, not from each place again


_OPEN = ("{", "[", ",", ":")
"""What follows one of these is no further value."""

_EXPECTED = frozenset(("train_batch_size", "train_micro_batch_size_per_gpu"))
_EXPECTED |= {"zero_optimization", "optimizer", "fp16", "bf16"}
_OTHER = (
    "does not look like a DeepSpeed configuration; expected a JSON object with keys such as "
    f"{', '.join(sorted(_EXPECTED))}"
)
_OF_ACCELERATE = re.compile(r"^\s*(?:distributed_type|deepspeed_config_file): ", re.M)
_OF_TRAINER = re.compile(r"^deepspeed: +[^\s#{\[]", re.M)
_GIVE_NAMED = 'the arguments of a trainer; give the configuration that "deepspeed" names'
_GIVE_ANOTHER = (
    "a configuration of accelerate; give the file that its deepspeed_config_file names, or without "
    "one a recorded run: dsprof report checks what accelerate makes of it"
)


@dataclass(frozen=True, slots=True)
class WrittenConfig:
    """A configuration as written in a file."""

    values: dict[str, Any]
    lines: dict[str, int]  # of keys, sections and names joined by dots
    is_json: bool  # otherwise Hjson, which DeepSpeed reads and transformers does not


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def read_config(path: Path) -> WrittenConfig:
    """Read JSON, or as much of Hjson as comments, and commas too many or too few.

    Raises:
        ConfigError: there is no such file, it is no configuration, or a key occurs twice.
    """
    text = _text(path)
    tokens = list(_tokens(text))
    is_object = _is_object(tokens)  # then such lines are in its comments
    if _OF_ACCELERATE.search(text) and not is_object:
        raise ConfigError(f"{path}: {_GIVE_ANOTHER}")
    if _OF_TRAINER.search(text) and not is_object:
        raise ConfigError(f"{path}: {_GIVE_NAMED}")
    try:
        _check_depth(tokens)
        _check_numbers(tokens)
        values, is_json = _parsed(text, tokens)
        json.dumps(values, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except ValueError as error:
        raise ConfigError(f"{path}: {_unreadable(tokens, error)}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: {_OTHER}")
    first: dict[tuple[str, ...], int] = {}
    for names, line in _keys(tokens):
        if names in first:
            raise ConfigError(
                f"{path}: line {line}: {'.'.join(names)} is set a second time "
                f"(first on line {first[names]}); DeepSpeed refuses that, accelerate and "
                "transformers take the last: delete all but one"
            )
        first[names] = line
    lines = {".".join(names): line for names, line in first.items()}
    return WrittenConfig(values, lines, is_json)


def _unreadable(tokens: Iterable[_Token], error: ValueError) -> str:
    """Say what is wrong with an object, or that there is none: then it is another kind of file."""
    why = str(error)
    if isinstance(error, UnicodeEncodeError):
        why = f"{error.object[error.start]!a} is half of a character; delete it, or add the rest"
    return f"cannot be read as JSON: {why}" if _is_object(tokens) else _OTHER


def _is_like_a_key(key: str) -> bool:
    return bool(key in top_level_keys() or get_close_matches(key, top_level_keys(), 1, 0.86))


def _wrapped(values: Mapping[str, Any]) -> str:
    """Say which object of another program's file is a configuration."""
    for key, value in values.items():
        if isinstance(value, dict) and _EXPECTED.intersection(value):
            return f'; "{key}" looks like one: save that object as its own file'
    return ""


def check_keys(path: Path, values: Mapping[str, Any]) -> None:
    """Check that one key at least is DeepSpeed's, or nearly, and that no trainer reads the file.

    Raises:
        ConfigError: the file is another program's.
    """
    named = values.get("deepspeed")
    if isinstance(named, str):
        raise ConfigError(f"{path}: {_GIVE_NAMED}")
    is_wrapped = isinstance(named, dict) and _EXPECTED.intersection(named)
    if values and (is_wrapped or not any(map(_is_like_a_key, values))):
        raise ConfigError(f"{path}: {_OTHER}{_wrapped(values)}")


def _text(path: Path) -> str:
    try:
        data = read_input(path, _LARGEST_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8") from None


def _parsed(text: str, tokens: Sequence[_Token]) -> tuple[Any, bool]:
    try:
        return json.loads(text), True
    except ValueError as error:
        kept = _plain(tokens)
        try:
            return json.loads(" ".join(token.text for token in kept)), False
        except json.JSONDecodeError as other:
            # Where there are comments, the first error is at one of them: that is no mistake.
            has_comments = any(token.kind == "comment" for token in tokens)
            if not (kept and has_comments):
                raise error from None
            ends = list(accumulate(len(token.text) + 1 for token in kept))
            wrong = kept[bisect_right(ends, other.pos)]
            raise ValueError(f"{other.msg}: line {wrong.line}") from None


def _check_depth(tokens: Iterable[_Token]) -> None:
    steps = {"{": 1, "[": 1, "}": -1, "]": -1}
    depth = accumulate(steps.get(token.text, 0) for token in tokens)
    if max(depth, default=0) > _DEEPEST:
        raise ValueError(f"nested more than {_DEEPEST} deep")


def _check_numbers(tokens: Iterable[_Token]) -> None:
    for token in tokens:
        digits = token.text.removeprefix("-")
        if len(digits) > _LONGEST_NUMBER and digits.isdecimal():
            raise ValueError(
                f"line {token.line}: a number of {len(digits):,} digits; "
                f"write at most {_LONGEST_NUMBER}"
            )


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for found in _TOKEN.finditer(text):
        yield _Token(found.lastgroup or "", found[0], line)
        line += found[0].count("\n")


def _solid(tokens: Iterable[_Token]) -> Iterator[_Token]:
    return (token for token in tokens if token.kind not in ("space", "comment"))


def _is_object(tokens: Iterable[_Token]) -> bool:
    return any(token.text == "{" for token in islice(_solid(tokens), 1))


def _plain(tokens: Iterable[_Token]) -> list[_Token]:
    """Leave comments out, and commas before a closing bracket; add those that lines replace."""
    kept: list[_Token] = []
    is_new_line = False
    for token in tokens:
        if token.kind in ("space", "comment"):
            is_new_line |= "\n" in token.text
            continue
        before = kept[-1].text if kept else "{"
        if token.text in ("}", "]") and before == ",":
            kept.pop()
        elif is_new_line and before not in _OPEN and token.text not in (",", ":", "}", "]"):
            kept.append(_Token("mark", ",", token.line))
        kept.append(token)
        is_new_line = False
    return kept


def _keys(tokens: Iterable[_Token]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the path and the line of each key; the contents of lists are skipped."""
    solid = list(_solid(tokens))
    path: list[str | None] = []  # the key of each open object, "" of the first; None: a list
    key: str | None = None
    for token, following in zip(solid, [*solid[1:], _Token("", "", 0)], strict=True):
        if token.kind == "text" and following.text == ":":
            key = json.loads(token.text)
            if None not in path:
                yield (*(name for name in path[1:] if name is not None), key or ""), token.line
        elif token.text in ("{", "["):
            path.append(key or "" if token.text == "{" else None)
            key = None
        elif token.text in ("}", "]") and path:
            path.pop()
