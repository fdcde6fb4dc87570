"""The environment and configuration of the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.environment import Difference, EnvironmentInfo
from dsprof.diagnosis.parts.run import ThresholdInfo
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Table
from dsprof.reports.tables.listing import Shown, listing, pairs


def environment(info: EnvironmentInfo) -> Iterator[Table]:
    """Facts common to all ranks: versions, devices, variables, files, limits."""
    for caption, things in _environment(info):
        if things:
            yield pairs(caption, sorted(things))


def _environment(info: EnvironmentInfo) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    changed = {k: v for k, v in info.effective.items() if info.variables.get(k) != v}
    yield "Versions", [(k, v) for k, v in info.versions.items() if k != "device"]
    yield "Devices", list(_devices(info))
    yield "Machine", [*info.machine.items(), *(("library", path) for path in info.libraries)]
    yield "Matrix products", list(info.precision.items())
    yield "Variables", list(info.variables.items())
    yield "Changed after start-up, before communication began", [*changed.items()]
    for path, settings in info.files.items():
        yield f"File {path}", [*settings.items()]
    yield "Limits", [(name, fmt.count(value)) for name, value in info.limits.items()]


def _devices(info: EnvironmentInfo) -> Iterator[tuple[str, str]]:
    for kind, names in (
        ("GPU", info.gpus),
        ("device", filter(None, [info.versions.get("device")])),  # as a profile names it
        ("accelerator", info.accelerators),
        ("adapter", info.adapters),
        ("network", info.network_devices),
    ):
        yield from ((kind, name) for name in names)


class _Value(NamedTuple):
    """One value of what differs between ranks."""

    name: str
    value: str
    ranks: Iterable[int]


_DIFFERENT: tuple[Shown[_Value], ...] = (
    Shown("Name", lambda one: one.name),
    Shown("Value", lambda one: one.value or "(unset)"),
    Shown("Ranks", lambda one: fmt.ranks(one.ranks)),
)


def differences(rows: Iterable[Difference]) -> Table:
    """Differences between ranks, one row a value."""
    values = [_Value(row.name, *value) for row in rows for value in row.values.items()]
    return listing("Differences between ranks", _DIFFERENT, values)


class _Setting(NamedTuple):
    """One leaf of a DeepSpeed configuration."""

    key: str
    written: str | None
    effective: str | None
    engine: int = 0


_SETTING: tuple[Shown[_Setting], ...] = (
    Shown("Setting", lambda one: one.key),
    Shown("Written", lambda one: one.written or "(default)"),
    Shown("In force", lambda one: one.effective or "(not reported)"),
)
_ENGINE: Shown[_Setting] = Shown("Engine", lambda one: str(one.engine))


def configuration(info: EnvironmentInfo) -> Table:
    """DeepSpeed settings: what the user wrote, and beside it what the engine uses."""
    if not info.engines:
        settings = _settings(info.written_config, info.effective_config)
        return listing("DeepSpeed configuration", _SETTING, settings)
    settings = [
        row
        for engine in info.engines
        for row in _settings(engine.written, engine.effective, engine.engine)
    ]
    return listing("DeepSpeed configuration of each engine", (_ENGINE, *_SETTING), settings)


def _settings(written: Any, effective: Any, engine: int = 0) -> list[_Setting]:
    """List what was written before what was not."""
    ours, theirs = dict(_leaves(written)), dict(_leaves(effective))
    rows = [_Setting(key, ours.get(key), theirs.get(key), engine) for key in {**ours, **theirs}]
    return sorted(rows, key=lambda one: (one.written is None, one.key))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested settings to dotted names and JSON values."""
    if isinstance(value, dict) and (value or not path):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, json.dumps(value, ensure_ascii=False)


_THRESHOLD: tuple[Shown[ThresholdInfo], ...] = (
    Shown("Rule", lambda row: row.rule),
    Shown("Threshold", lambda row: row.name),
    Shown("Value", lambda row: json.dumps(row.value, ensure_ascii=False)),
    Shown("From", lambda row: "default" if row.is_default else "set by you"),
)
thresholds = partial(listing, "Thresholds in force", _THRESHOLD)


def run(diagnosis: Diagnosis) -> Table:
    """Identity of the run and what was read."""
    info = diagnosis.run
    things = [
        ("Run", info.run_key),
        ("Started", info.started),
        ("Hosts", ", ".join(info.hosts)),
        ("Ranks read", fmt.ranks(info.ranks)),
        *((f"Version of {name}", version) for name, version in sorted(info.versions.items())),
        ("Analysed by dsprof", diagnosis.dsprof_version),
        *(("File read", path) for path in info.source),
    ]
    return pairs("This run", [(name, value) for name, value in things if value])
