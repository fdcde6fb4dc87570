"""inert-config-key: a key that DeepSpeed knows but that has no effect at this ZeRO stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dsprof.analysis.aggregates.engines import Engines
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import remarks
from dsprof.rules.configuration.config_rule import ConfigRule
from dsprof.rules.configuration.engine_settings import EngineSettings, named_keys, them
from dsprof.rules.knowledge.deepspeed.combinations import refused
from dsprof.rules.knowledge.deepspeed.conflicts import AT_ODDS
from dsprof.rules.knowledge.deepspeed.keys import AUTO, ZERO, keys, retired
from dsprof.rules.rule import NoThresholds, RuleMeta

_ZENFLOW = f"{ZERO}.zenflow"
_READ_BY_ZENFLOW = f"{ZERO}.allgather_bucket_size"


class InertConfigKey(ConfigRule):
    """Looks for keys that belong to other stages, or to none."""

    meta = RuleMeta(
        id="inert-config-key",
        title="Every key has an effect at this ZeRO stage",
        failing_title="Keys of the DeepSpeed configuration have no effect",
        why="DeepSpeed accepts the keys of all stages at every stage and silently ignores those "
        "that it does not use.",
        category="configuration",
        order=570,
        needs=(Engines,),
    )

    def judge(self, settings: EngineSettings, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report keys that somebody misses, and apart from them harmless leftovers."""
        if settings.stage is None:
            why = "was not recorded" if settings.has_run else "is not a number from 0 to 3"
            yield self.meta.unknown(f"Unknown: the ZeRO stage {why}.")
            return
        inert = list(_inert(settings, settings.stage))
        if missed := [(path, loses) for path, loses in inert if loses]:
            yield self._missed(settings, missed)
        if leftovers := [path for path, loses in inert if not loses]:
            yield self._leftovers(settings, leftovers)

    def _missed(self, settings: EngineSettings, rows: list[tuple[str, str]]) -> Finding:
        names = named_keys([path for path, _ in rows])
        return self.meta.finding(
            Status.FAIL,
            f"At stage {settings.stage} {names} {'has' if len(rows) == 1 else 'have'} no effect.",
            severity=Severity.LOW,
            cause=remarks(rows),
            action=f"Choose a stage at which {'it works' if len(rows) == 1 else 'they work'} "
            f"({_stages_of(rows)}), or delete {them(rows)}.",
            evidence=(settings.table(rows, remark="in fact"),),
            confidence="high",
        )

    def _leftovers(self, settings: EngineSettings, paths: list[str]) -> Finding:
        return self.meta.finding(
            Status.INFO,
            f"{named_keys(paths)} change nothing at stage {settings.stage}."
            if len(paths) > 1
            else f"{paths[0]} changes nothing at stage {settings.stage}.",
            action=f"No change is needed; delete {them(paths)} so that the file states what is in "
            "force.",
            evidence=(settings.table([(p, _where(p)) for p in paths], remark="effect"),),
            confidence="high",
        )


def _inert(settings: EngineSettings, stage: int) -> Iterator[tuple[str, str]]:
    """Yield keys without effect, each with what is lost; "" where nothing is.

    Keys that DeepSpeed refuses, or that work by another name only, have rules of their own, and so
    has a device that is not the one in use: whether its keys are left over is known once it is.
    """
    told = {next(iter(one.when)) for one in (*refused(), *AT_ODDS) if settings.holds(one)}
    for path, value in settings.paths():
        key = keys().get(path)
        if (
            key is None
            or key.stages is None
            or stage in key.stages
            or _is_inside_inert(path, stage)
            or not told.isdisjoint((path, f"{path.rpartition('.')[0]}.device"))
            or (path in retired() and not key.stages)
        ):
            continue
        if path == _READ_BY_ZENFLOW and settings.in_force(_ZENFLOW):
            continue
        yield path, key.loses if _asks_for_something(value) else ""


def _is_inside_inert(path: str, stage: int) -> bool:
    """Whether the section of a key is without effect itself, which says it all."""
    section = keys().get(path.rpartition(".")[0])
    return section is not None and section.stages is not None and stage not in section.stages


def _asks_for_something(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("device", "none") not in ("none", AUTO, None)
    return value is True or (bool(value) and value not in (1, AUTO))


def _where(path: str) -> str:
    stages = keys()[path].stages
    return f"used at {_listed(stages)}" if stages else "used at no stage"


def _stages_of(rows: list[tuple[str, str]]) -> str:
    common = frozenset({1, 2, 3}).intersection(*(keys()[path].stages or () for path, _ in rows))
    return _listed(common)


def _listed(stages: Iterable[int]) -> str:
    numbers = sorted(stages)
    return f"stage{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
