"""The environment section: what all ranks share, and what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from dsprof.analysis.aggregates.environment import EnvironmentFacts, Facts, RankSet, ranks_of
from dsprof.diagnosis import model

V = TypeVar("V")


def environment_info(facts: EnvironmentFacts) -> model.EnvironmentInfo:
    """Set what all ranks share apart from what differs between them."""
    files: dict[str, dict[str, str]] = {}
    for (file, name), values in facts.files.items():
        files.setdefault(file, {})[name] = _first(values)
    engine = facts.first_engine
    return model.EnvironmentInfo(
        variables=_shared(facts, facts.variables),
        effective=_shared(facts, facts.hidden),
        files=files,
        versions=_shared(facts, facts.versions),
        gpus=_devices(facts, "gpus"),
        network_devices=_devices(facts, "network"),
        limits={name: _first(values) for name, values in facts.limits.items()},
        redacted=sorted(facts.redacted),
        differences=list(_differences(facts)),
        written_config=engine.written if engine else {},
        effective_config=engine.effective if engine else {},
    )


def _differences(facts: EnvironmentFacts) -> Iterator[model.Difference]:
    for part in (facts.variables, facts.versions, facts.written):
        for name, values in facts.differing(part).items():
            ranks = {value: list(ranks_of(held)) for value, held in values.items()}
            yield model.Difference(name=name, values=ranks)


def _shared(facts: EnvironmentFacts, part: Facts[str, str]) -> dict[str, str]:
    apart = facts.differing(part)
    return {name: _first(values) for name, values in sorted(part.items()) if name not in apart}


def _devices(facts: EnvironmentFacts, kind: str) -> list[str]:
    values = facts.devices.get(kind)
    if not values:
        return []
    names: tuple[str, ...] = _first(values)
    return list(names)


def _first(values: Mapping[V, RankSet]) -> V:
    """Return the value of the lowest rank."""
    return min(values, key=lambda value: values[value] & -values[value])
