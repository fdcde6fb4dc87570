"""Which variables and DeepSpeed keys may be written with their values: those that dsprof knows.

The names of libraries' variables and of DeepSpeed's keys are the tables that the rules read, too;
here they are data, for the training process imports no rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from dsprof.files.redaction import REDACTED, plain_value, written_name
from dsprof.files.tables import lines, rows

_TABLES = "rules/knowledge/"

NAME_KEYS = frozenset(
    ("wandb.project", "wandb.group", "wandb.team", "comet.project", "comet.workspace")
    + ("comet.experiment_name", "tensorboard.job_name", "csv_monitor.job_name")
)
"""Keys whose values are names that somebody chose."""

_DEEPEST = 30
"""No section of DeepSpeed is nested more; what is made to exhaust the stack is."""

_SECRETS = frozenset(("comet.api_key", "comet.experiment_key"))
"""Keys that DeepSpeed reads and that are credentials."""


def written_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables as they may be written, names included."""
    return {
        name if is_known_variable(name) else written_name(name): written_variable(name, value)
        for name, value in variables.items()
    }


def written_variable(name: str, value: str) -> str:
    """Return the value of a variable as it may be written."""
    if not value:
        return value
    return value if is_known_variable(name) and plain_value(value) else REDACTED


@cache
def is_known_variable(name: str) -> bool:
    """Whether a library or a launcher that dsprof knows reads or sets `name`."""
    exact, patterns = _variables()
    return name in exact or any(
        name.startswith(start) and name.endswith(end) for start, end in patterns
    )


def written_config(config: Mapping[Any, Any], section: str = "") -> dict[str, Any]:
    """Return a DeepSpeed configuration as it may be written, its structure kept."""
    return {
        written_key(key): written_setting(f"{section}{key}", value) for key, value in config.items()
    }


def hidden_settings(config: Mapping[Any, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of what `written_config` redacts, whole or in part.

    Values below a key that is redacted itself are skipped.
    """
    for key, value in config.items():
        path = f"{section}{key}"
        if written_key(key) != str(key) or path.count(".") > _DEEPEST:
            continue
        if isinstance(value, Mapping) and value:
            yield from hidden_settings(value, f"{path}.")
        elif REDACTED in (found := written_setting(path, value), *_items(found)):
            yield path, value


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def written_key(key: Any) -> str:
    """Return a key of a configuration as it may be written."""
    return str(key) if str(key) in _words() else written_name(str(key))


def written_setting(path: str, value: Any) -> Any:
    """Return the value of a dotted DeepSpeed key as it may be written."""
    if path.count(".") > _DEEPEST:
        return REDACTED
    if isinstance(value, Mapping):
        return written_config(value, f"{path}.")
    if path in NAME_KEYS and isinstance(value, str):
        return value if plain_value(value.replace(" ", "_")) else REDACTED
    if path not in _keys():
        return None if value is None else REDACTED
    return _written_values(value)


def _written_values(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_written_value(part) for part in value]
    return _written_value(value)


def _written_value(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple, Mapping)):
        return REDACTED
    text = str(value)
    return text if plain_value(text) else REDACTED


@cache
def top_level_keys() -> frozenset[str]:
    """Return the keys and sections with which a DeepSpeed configuration may begin."""
    return frozenset(path.partition(".")[0] for path in _keys())


@cache
def _variables() -> tuple[frozenset[str], list[tuple[str, str]]]:
    """Return names, and how names begin and end."""
    tables = ("known_names.txt", "harmless_names.txt", "launcher_names.txt")
    names = [name for table in tables for name in lines(_TABLES + table)]
    retired = [row["name"] for row in rows(_TABLES + "retired_names.csv")]
    patterns = [(start, end) for start, star, end in (n.partition("*") for n in names) if star]
    return frozenset([*names, *retired]), patterns


@cache
def _keys() -> frozenset[str]:
    tables = f"{_TABLES}deepspeed/"
    listed = rows(tables + "keys.csv")
    known = (".".join(filter(None, (row["section"], row["key"]))) for row in listed)
    retired = (row["key"] for row in rows(tables + "retired.csv"))
    return frozenset([*known, *retired, *lines(tables + "open_keys.txt")]) - _SECRETS


@cache
def _words() -> frozenset[str]:
    return frozenset(word for path in _keys() | _SECRETS for word in path.split("."))
