"""The settings of a DeepSpeed engine as rules on configurations ask for them, by dotted key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsprof.files.redaction import REDACTED, is_secret_name
from dsprof.files.redaction.known_settings import written_setting
from dsprof.findings.finding import Cell, Column, Table
from dsprof.findings.wording import shortened, some
from dsprof.rules.knowledge.deepspeed.combinations import Combination
from dsprof.rules.knowledge.deepspeed.keys import AUTO, NEWEST, ZERO, defaults, fate_of_auto, keys
from dsprof.rules.knowledge.deepspeed.values import fits, is_on
from dsprof.rules.knowledge.releases import Release, release
from dsprof.trace.schema import EngineConfig

_STAGE = f"{ZERO}.stage"

_OLD_OFFLOADS = {
    f"{ZERO}.offload_optimizer.device": f"{ZERO}.cpu_offload",
    f"{ZERO}.offload_param.device": f"{ZERO}.cpu_offload_param",
}
"""Older configurations set the device of an offload by these keys; true is the CPU."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of one engine, as written and, as far as known, in force."""

    engine: EngineConfig
    lines: Mapping[str, int]  # of written keys, where a file was read
    version: str  # of DeepSpeed; "" where it is not known
    device: str = ""

    @property
    def written(self) -> Mapping[str, Any]:
        """The written configuration: sections and keys."""
        return self.engine.written

    @property
    def has_run(self) -> bool:
        """Whether DeepSpeed made an engine of it; otherwise it was only read."""
        return bool(self.engine.effective)

    @property
    def release(self) -> Release:
        """The release to judge by: the newest known where the run's own is not known."""
        return release(self.version) or NEWEST

    @property
    def judged_by(self) -> str:
        """The release in words for a report."""
        newest = ".".join(map(str, NEWEST))
        return f"DeepSpeed {self.version or f'{newest} (the newest known)'}"

    @property
    def stage(self) -> int | None:
        """The ZeRO stage in force; None where it is unknown."""
        stage = self.in_force(_STAGE)
        return stage if stage in range(4) else None

    def paths(self) -> Iterator[tuple[str, Any]]:
        """Yield each written key with its value, sections before what they hold."""
        return _paths(self.written)

    def dotted(self) -> Iterator[tuple[str, Any]]:
        """Yield keys of the top level that are written like paths, with what these lead to.

        DeepSpeed finds no section in them.
        """
        return ((key, _value(self.written, key)) for key in self.written if "." in key)

    def in_force(self, path: str) -> Any:
        """Return the value in force of a dotted key; None where it is unknown.

        `engine.kind`, `engine.device` and `engine.experts_apart` are no keys; they are "" and 0
        before there is an engine.
        """
        if path.startswith("engine."):
            own = {"engine.device": self.device}
            return own[path] if path in own else getattr(self.engine, path.partition(".")[2])
        old = path.replace("bf16.", "bfloat16.", 1)  # read where there is no bf16
        for value in (self.recorded(path), *(_value(self.written, name) for name in (path, old))):
            if value is not None and value != AUTO:
                return _number(value) if path == _STAGE else _switched(path, value)
        if _value(self.written, path) == AUTO and not self.has_run:
            fate = fate_of_auto(path, self.release)
            if fate != "default":
                return None if fate == "filled" else AUTO
        return self._default(path)

    def recorded(self, path: str) -> Any:
        """Return what the engine holds of a dotted key; None where that was not recorded.

        DeepSpeed drops the prefix of keys of stage 3.
        """
        value = _value(self.engine.effective, path)
        short = path.replace(".stage3_", ".")
        return value if value is not None else _value(self.engine.effective, short)

    def holds(self, combination: Combination) -> bool:
        """Whether every condition holds; an unknown value meets none."""
        if not combination.concerns(self.release) or (combination.only_before and self.has_run):
            return False
        first = next(iter(combination.when))
        if combination.only_written and _value(self.written, first) is None:
            return False
        return all(
            (value := self.in_force(path)) is not None and condition(value)
            for path, condition in combination.when.items()
        )

    def cells(self, path: str) -> list[Cell]:
        """Return the first cells of a row: key, value and, where it is known, the line."""
        value = self.written.get(path, _value(self.written, path))
        is_set = value is not None or path in self.lines
        shown = json.dumps(self._shown(path, value), default=str) if is_set else "not set"
        if not self.has_run and REDACTED in shown:
            shown = ""  # the line of the file shows it
        line: list[Cell] = [self.lines.get(path)] if self.lines else []
        return [path, shortened(shown), *line]

    def _shown(self, path: str, value: Any) -> Any:
        """Return a value as it may be written; a file that is only read shows plain numbers."""
        is_plain = isinstance(value, (bool, int, float)) and not is_secret_name(path)
        return value if is_plain and not self.has_run else written_setting(path, value)

    def table(self, rows: Sequence[tuple[str, str]], *, remark: str) -> Table:
        """Return a table of keys, each with a remark."""
        line = (Column("line", "count"),) if self.lines else ()
        return Table(
            (Column("key"), Column("value"), *line, Column(remark)),
            tuple((*self.cells(path), text) for path, text in rows),
            caption=f"Judged by {self.judged_by}",
        )

    def _default(self, path: str) -> Any:
        if path == f"{ZERO}.overlap_comm":
            return None if self.stage is None else self.stage == 3
        if path in _OLD_OFFLOADS and self.in_force(_OLD_OFFLOADS[path]) is True:
            return "cpu"
        if path == _STAGE:
            return _stage_of(self.written.get(ZERO))
        return defaults().get(path)


def named_keys(paths: Sequence[str]) -> str:
    """Name keys in a sentence: one or two, or the first two and how many more."""
    return " and ".join(paths) if len(paths) <= 2 else some(paths, 2)


def them(keys: Sequence[object]) -> str:
    """Refer to keys that a sentence has named."""
    return "it" if len(keys) == 1 else "them"


def _stage_of(zero: Any) -> int | None:
    """Return the stage of a section that names none; None where it is null, which is refused."""
    if zero is True:
        return 1  # the form of the very first releases
    return None if isinstance(zero, Mapping) and "stage" in zero else 0


def _number(stage: Any) -> Any:
    """Return a stage as DeepSpeed takes it: "2", 2.0 and true are numbers."""
    try:
        return int(stage) if float(stage) % 1 == 0 else stage
    except (TypeError, ValueError, OverflowError):
        return stage


def _switched(path: str, value: Any) -> Any:
    """Return true or false for what DeepSpeed takes for it: 1, "yes", "off"."""
    is_switch = path in keys() and keys()[path].kind.startswith("bool")
    return is_on(value) if is_switch and fits(value, "bool") else value


def _value(config: Mapping[str, Any], path: str) -> Any:
    found: Any = config
    for name in path.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(name)
    return found


def _paths(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if "." in key:  # no section holds it
            continue
        yield f"{prefix}{key}", value
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{key}.")
