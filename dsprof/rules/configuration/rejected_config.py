"""rejected-config: a DeepSpeed configuration from which no engine can be made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dsprof.analysis.aggregates.engines import Engines
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import remarks
from dsprof.rules.configuration.config_rule import ConfigRule
from dsprof.rules.configuration.engine_settings import EngineSettings, named_keys, them
from dsprof.rules.configuration.unknown_keys import MONITORS, fate_of, meant_by
from dsprof.rules.knowledge.deepspeed.combinations import refused
from dsprof.rules.knowledge.deepspeed.keys import (
    AUTO,
    ZERO,
    fate_of_auto,
    fate_of_retired,
    fate_of_unknown,
    keys,
    retired,
    section_of,
    sections,
)
from dsprof.rules.knowledge.deepspeed.partitions import PARTITION_CONFIG, mistakes
from dsprof.rules.knowledge.deepspeed.values import SCHEDULERS, WORDS, fits, not_taken, takes
from dsprof.rules.rule import RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How like a known key a refused one must be for a hint: it may be bold."""

    similarity: float = 0.6  # difflib ratio


class RejectedConfig(ConfigRule):
    """Looks for what stops an engine at its construction."""

    meta = RuleMeta(
        id="rejected-config",
        title="DeepSpeed accepts the configuration",
        failing_title="DeepSpeed refuses the configuration",
        why="The run fails at deepspeed.initialize, on a cluster after its time in the queue.",
        category="configuration",
        order=530,
        needs=(Engines,),
    )

    thresholds = Thresholds()

    def judge(self, settings: EngineSettings, thresholds: Thresholds) -> Iterable[Finding]:
        """Report what the release refuses, or of an engine that runs, what a later one will."""
        if settings.has_run:
            if rows := list(_refused_later(settings)):
                yield self._later(settings, rows)
        elif rows := [
            *_refused_keys(settings, thresholds.similarity),
            *_mistyped(settings),
            *_refused_values(settings),
        ]:
            yield self._refused(settings, rows)

    def _refused(self, settings: EngineSettings, rows: list[tuple[str, str]]) -> Finding:
        keys = list(dict.fromkeys(path for path, _ in rows))
        return self.meta.finding(
            Status.FAIL,
            f"{settings.judged_by} ends with an error because of {named_keys(keys)}.",
            severity=Severity.HIGH,
            cause=remarks(rows),
            action=f"Change {them(keys)} before you start the run.",
            evidence=(settings.table(rows, remark="why, and what to do"),),
            confidence="high" if settings.version else "medium",
        )

    def _later(self, settings: EngineSettings, rows: list[tuple[str, str]]) -> Finding:
        return self.meta.finding(
            Status.INFO,
            f"A later release of DeepSpeed refuses {named_keys([path for path, _ in rows])}.",
            title="A later release of DeepSpeed refuses the configuration",
            action=f"Change {them(rows)} before you upgrade DeepSpeed.",
            evidence=(settings.table(rows, remark="what to do"),),
            confidence="high",
        )


def _refused_keys(settings: EngineSettings, similarity: float) -> Iterator[tuple[str, str]]:
    for path, _ in settings.paths():
        if fate_of_retired(path, settings.release) == "refused":
            word = "removed" if retired()[path].since else "not taken"
            yield path, f"{word}; {retired()[path].instead}"
        elif path not in retired() and fate_of(path, settings.release) == "refused":
            hint = meant_by(path, settings.release, similarity) or "delete it"
            yield path, f"{section_of(path)} knows no such key; {hint}"


def _mistyped(settings: EngineSettings) -> Iterator[tuple[str, str]]:
    for path, value in settings.paths():
        kind = keys()[path].kind if path in keys() else ""
        checked = kind and fate_of_unknown(section_of(path), settings.release) == "refused"
        if checked and not _is_replaced(settings, path, value) and not fits(value, kind):
            yield path, f"must be {WORDS[kind.rstrip('?')]}"


def _refused_values(settings: EngineSettings) -> Iterator[tuple[str, str]]:
    for path, value in settings.paths():
        if not _is_compared(settings, path) or _is_replaced(settings, path, value):
            continue
        if must := not_taken(path, value):
            yield path, must
    for section in sections():
        if not _may_be(section, settings.written.get(section, {})):
            yield section, "must be an object"
    for combination in refused():
        if settings.holds(combination):
            yield next(iter(combination.when)), f"{combination.says}; {combination.do}"
    yield from _refused_by_parts(settings)


def _refused_by_parts(settings: EngineSettings) -> Iterator[tuple[str, str]]:
    """Yield what the parts of DeepSpeed refuse that get a section as it is written."""
    taken = SCHEDULERS.get(str(settings.in_force("scheduler.type")))
    params = settings.in_force("scheduler.params")
    if taken and isinstance(params, Mapping):
        for name in params.keys() - taken:
            yield f"scheduler.params.{name}", "the scheduler takes no such parameter; delete it"
    size = settings.in_force("tensor_parallel.autotp_size")
    is_read = settings.release > keys()[PARTITION_CONFIG].not_in
    if isinstance(size, int) and size > 1 and is_read:
        yield from mistakes(settings.in_force(PARTITION_CONFIG))


def _is_compared(settings: EngineSettings, path: str) -> bool:
    """Whether the release knows the key, and the switch is on without which it ignores it."""
    if path not in takes() or (path in keys() and settings.release <= keys()[path].not_in):
        return False
    _, switch, since = takes()[path]
    return settings.release >= since and (not switch or bool(settings.in_force(switch)))


def _may_be(section: str, value: object) -> bool:
    is_old_switch = section == ZERO and isinstance(value, bool)
    is_default = section in ("aio", "bf16") and value is None
    is_searched = section == "timers" and isinstance(value, str | list)
    is_dropped = section in MONITORS and value == AUTO
    return isinstance(value, Mapping) or is_old_switch or is_default or is_searched or is_dropped


def _is_replaced(settings: EngineSettings, path: str, value: object) -> bool:
    """Whether DeepSpeed never compares a value, because "auto" is replaced by another."""
    fate = fate_of_auto(path, settings.release) if value == AUTO else "kept"
    return fate in ("filled", "default") or (fate == "own" and path not in takes())


def _refused_later(settings: EngineSettings) -> Iterator[tuple[str, str]]:
    for path, _ in settings.paths():
        key = retired().get(path)
        if key and key.fate == "refused" and settings.release < key.since:
            yield path, f"refused from {'.'.join(map(str, key.since))} on; {key.instead}"
