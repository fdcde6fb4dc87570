"""Configuration files: YAML read as nodes, which know their lines and columns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from dsprof.config.settings import Setting, did_you_mean, in_one_line
from dsprof.files.inputs import read_input

if TYPE_CHECKING:
    from yaml.error import Mark
    from yaml.nodes import Node, ScalarNode

_LARGEST_BYTES = 1 << 18
"""Every threshold of every rule takes a tenth of it; YAML takes a second to read more."""

_RULES = "rules"
_PLAIN_INTEGER = re.compile(r"[-+]?(0|[1-9]\d{0,17})")
_FLOAT = re.compile(r"[-+]?(\d+\.\d*|\.?\d+)([eE][-+]?\d+)?")


class ConfigFile:
    """Settings at the top level, and sections: recording options, and thresholds in `rules:`.

    What is wrong with the file is appended to `mistakes`, one line each.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mistakes: list[str],
        sections: tuple[str, ...] = (_RULES,),
        lists: tuple[str, ...] = (),
    ) -> None:
        self._path = os.fspath(path)
        self._mistakes = mistakes
        self._options = self._entries(self._compose(), "the file")
        self._sections = {name: self._section(name) for name in sections}
        self._lists = {name: self._options.pop(name, (None, None))[1] for name in lists}

    def options(self, known: Iterable[str]) -> dict[str, Setting]:
        """Return the settings of the top level."""
        return self._settings(self._options, known, "key", also=(*self._sections, *self._lists))

    def section(self, name: str, known: Iterable[str]) -> dict[str, Setting]:
        """Return the settings of a section; none where the file has no such section."""
        return self._settings(self._sections[name], known, f"key under '{name}':")

    def words(self, name: str, known: Iterable[str], noun: str) -> tuple[str, ...] | None:
        """Return the items of a list, each of which must be a known word; None without a list."""
        from yaml.nodes import ScalarNode, SequenceNode

        node = self._lists[name]
        if node is None or _is_null(node):
            return None
        if not isinstance(node, SequenceNode):
            self._mistakes.append(f"{self._place(node.start_mark)}: '{name}' must be a list")
            return ()
        names, found = list(known), []
        for item in node.value:
            word = item.value if isinstance(item, ScalarNode) else str(item.tag)
            if word in names:
                found.append(word)
            else:
                self._unknown(item, noun, word, names)
        return tuple(found)

    def thresholds(self, schema: Mapping[str, type]) -> Iterator[tuple[str, dict[str, Setting]]]:
        """Yield rule by rule the settings of the section `rules:`.

        `schema` maps the id of a rule to the dataclass of its thresholds.
        """
        for rule, (key, node) in self._sections[_RULES].items():
            if rule not in schema:
                self._unknown(key, "rule", rule, schema)
                continue
            known = [field.name for field in fields(schema[rule])]
            entries = self._entries(node, f"'{rule}'")
            yield rule, self._settings(entries, known, f"threshold of {rule}")

    def _section(self, name: str) -> dict[str, tuple[Node, Node]]:
        entry = self._options.pop(name, None)
        return self._entries(entry[1], f"'{name}'") if entry else {}

    def _compose(self) -> Node | None:
        import yaml

        from dsprof.config.shallow_yaml import ShallowLoader

        try:
            data = read_input(self._path, _LARGEST_BYTES)
            return yaml.compose(data, Loader=ShallowLoader)
        except OSError as error:
            self._mistakes.append(f"{self._path}: cannot be read: {error.strerror}")
        except yaml.MarkedYAMLError as error:
            problem = error.problem or error.context
            self._mistakes.append(f"{self._place(error.problem_mark)}: not YAML: {problem}")
        except (yaml.YAMLError, UnicodeError) as error:
            self._mistakes.append(f"{self._path}: not YAML: {' '.join(str(error).split())}")
        except RecursionError:
            self._mistakes.append(f"{self._path}: not a configuration: nested too deeply")
        return None

    def _entries(self, node: Node | None, what: str) -> dict[str, tuple[Node, Node]]:
        """Return key -> (key node, value node); nothing for what is empty or no mapping."""
        from yaml.nodes import MappingNode, ScalarNode

        if node is None or _is_null(node):
            return {}
        if not isinstance(node, MappingNode):
            self._mistakes.append(f"{self._place(node.start_mark)}: {what} must be a mapping")
            return {}
        entries: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            place = self._place(key.start_mark)
            if not isinstance(key, ScalarNode):
                self._mistakes.append(f"{place}: a key must be a name")
            elif key.value in entries:
                first = entries[key.value][0].start_mark.line + 1
                name = in_one_line(key.value)
                self._mistakes.append(f"{place}: '{name}' is already set in line {first}")
            else:
                entries[key.value] = key, value
        return entries

    def _settings(
        self,
        entries: Mapping[str, tuple[Node, Node]],
        known: Iterable[str],
        noun: str,
        also: tuple[str, ...] = (),
    ) -> dict[str, Setting]:
        names = list(known)
        settings = {}
        for name, (key, node) in entries.items():
            if name in names:
                value, written = _read(node)
                settings[name] = Setting(value, self._place(node.start_mark), written)
            else:
                self._unknown(key, noun, name, [*names, *also])
        return settings

    def _unknown(self, key: Node, noun: str, name: str, known: Iterable[str]) -> None:
        place = self._place(key.start_mark)
        near = did_you_mean(name, known, listed_by="dsprof rules" if noun == "rule" else "")
        self._mistakes.append(f"{place}: unknown {noun} '{in_one_line(name)}'{near}")

    def _place(self, mark: Mark | None) -> str:
        return f"{self._path}:{mark.line + 1}:{mark.column + 1}" if mark else self._path


def _is_null(node: Node) -> bool:
    return node.tag == "tag:yaml.org,2002:null"


def _read(node: Node) -> tuple[Any, str]:
    """Return the value of a node and how it was written."""
    from yaml.nodes import ScalarNode, SequenceNode

    if isinstance(node, SequenceNode):
        items = [_scalar(item) if isinstance(item, ScalarNode) else item for item in node.value]
        return items, "a list"
    if not isinstance(node, ScalarNode):
        return node, "a mapping"
    value = _scalar(node)
    word = _YAML_WORDS.get(value) if value is None or isinstance(value, bool) else None
    if word is None or node.value == word:
        return value, in_one_line(node.value)
    return value, f"{node.value or 'nothing'}, which YAML reads as {word}"


_YAML_WORDS = {True: "true", False: "false", None: "null"}


def _scalar(node: ScalarNode) -> Any:
    """Read a scalar without YAML 1.1's surprises: 012 is no number here, and 1e6 is one."""
    text = node.value
    match node.tag.removeprefix("tag:yaml.org,2002:"):
        case "null":
            return None
        case "bool":
            return text.lower() in ("true", "yes", "on")
        case "int" if _PLAIN_INTEGER.fullmatch(text):
            return int(text)
        case "float" if _FLOAT.fullmatch(text):
            return float(text)
        case "str" if node.style is None and _FLOAT.fullmatch(text):
            return float(text)
    return text
