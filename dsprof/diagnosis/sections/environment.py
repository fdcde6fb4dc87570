"""The environment section: what all ranks share, and what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.environment import EnvironmentFacts, Facts
from dsprof.analysis.rank_sets import RankSet, ranks_of
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts import filled
from dsprof.diagnosis.parts.environment import Difference, EngineSettings, EnvironmentInfo
from dsprof.environment.machine import OF_A_RANK, Accelerator, Adapter
from dsprof.trace.schema import EngineConfig

V = TypeVar("V", bound=Hashable)


def environment_info(
    facts: EnvironmentFacts, engines: Sequence[EngineConfig] = ()
) -> EnvironmentInfo:
    """Set what all ranks share apart from what differs between them."""
    apart = facts.differing(_in_files(facts))
    files: dict[str, dict[str, str]] = {}
    for (file, name), values in facts.files.items():
        if _in_file(name, file) not in apart:
            files.setdefault(file, {})[name] = _first(values)
    limits = _limits(facts)
    engine = engines[0] if engines else None
    return EnvironmentInfo(
        variables=_shared(facts, facts.variables_apart),
        effective=_shared(facts, facts.hidden),
        files=files,
        versions=_shared(facts, facts.versions),
        gpus=_devices(facts, "gpus"),
        network_devices=_devices(facts, "network"),
        limits={name: int(value) for name, value in _shared(facts, limits).items()},
        redacted=sorted(facts.redacted),
        differences=list(_differences(facts)),
        written_config=engine.written if engine else {},
        effective_config=engine.effective if engine else {},
        engines=[_settings(one) for one in engines] if len(engines) > 1 else [],
        accelerators=[_accelerator(one) for one in _of_first_host(facts.accelerators)],
        adapters=[_adapter(one) for one in _of_first_host(facts.adapters)],
        machine=_shared(facts, facts.machine),
        precision=_shared(facts, facts.precision),
        libraries=sorted(facts.libraries),
    )


def _settings(engine: EngineConfig) -> EngineSettings:
    return filled(EngineSettings, engine, parameters=engine.parameters or None)


def _differences(facts: EnvironmentFacts) -> Iterator[Difference]:
    machine = {name: held for name, held in facts.machine.items() if name not in OF_A_RANK}
    limits = {f"limit {name}": held for name, held in _limits(facts).items()}
    hardware = (_devices_of_ranks(facts), _interfaces(facts), machine, limits)
    settings = (facts.variables_apart, _in_files(facts), facts.versions, *hardware, facts.precision)
    for differing in (*map(facts.differing, settings), facts.differing_keys()):
        for name, values in differing.items():
            ranks = {value: list(ranks_of(held)) for value, held in values.items()}
            yield Difference(name=name, values=ranks)


def _in_files(facts: EnvironmentFacts) -> Facts[str, str]:
    return {_in_file(name, file): values for (file, name), values in facts.files.items()}


def _in_file(name: str, file: str) -> str:
    return f"{name} in {file}"


def _interfaces(facts: EnvironmentFacts) -> Facts[str, str]:
    """Return the network devices of each rank; those of containers have a new name each time."""
    held: dict[str, RankSet] = {}
    for devices, ranks in facts.devices.get("network", {}).items():
        text = ", ".join(sorted(one for one in devices if not one.startswith("veth")))
        held[text] = held.get(text, 0) | ranks
    return {"network devices": held}


def _limits(facts: EnvironmentFacts) -> Facts[str, str]:
    return {
        name: {str(value): ranks for value, ranks in held.items()}
        for name, held in facts.limits.items()
    }


def _devices_of_ranks(facts: EnvironmentFacts) -> Facts[str, str]:
    """Count the devices of each rank; where on its host a device is may differ."""
    gpus = [(names, ranks) for names, ranks in facts.devices.get("gpus", {}).items() if names]
    held = [("GPUs", *one) for one in gpus if len(gpus) > 1]  # a rank names none before it uses one
    for host in facts.accelerators.values():
        for some, ranks in host.items():
            held.append(("accelerators", tuple(one.name or one.vendor for one in some), ranks))
    for ports in facts.adapters.values():
        held += [("adapters", tuple(map(_adapter, some)), ranks) for some, ranks in ports.items()]
    found: dict[str, dict[str, RankSet]] = {}
    for kind, names, ranks in held:
        counts = sorted(Counter(names).items())
        text = ", ".join(f"{count} of {name}" for name, count in counts)
        values = found.setdefault(kind, {})
        values[text] = values.get(text, 0) | ranks
    return found


def _shared(facts: EnvironmentFacts, part: Facts[str, str]) -> dict[str, str]:
    apart = facts.differing(part)
    return {name: _first(values) for name, values in sorted(part.items()) if name not in apart}


def _devices(facts: EnvironmentFacts, kind: str) -> list[str]:
    values = facts.devices.get(kind)
    if not values:
        return []
    names: tuple[str, ...] = _first(values)
    return list(names)


def _of_first_host(facts: Facts[str, tuple[V, ...]]) -> tuple[V, ...]:
    return _first(facts[min(facts)]) if facts else ()


def _accelerator(found: Accelerator) -> str:
    node = f"NUMA node {found.numa_node}" if found.numa_node >= 0 else ""
    where = ", ".join(filter(None, [found.address, node]))
    return f"{found.name or found.vendor}{f' ({where})' if where else ''}"


def _adapter(found: Adapter) -> str:
    parts = (found.name, found.link, found.rate, found.state, found.driver)
    return " ".join(filter(None, parts))


def _first(values: Mapping[V, RankSet]) -> V:
    """Return the value of the lowest rank."""
    return min(values, key=lambda value: values[value] & -values[value])


def _of_run(summary: RunSummary) -> EnvironmentInfo:
    return environment_info(summary[EnvironmentFacts], summary[Engines].engines)


SECTIONS = {"environment": _of_run}
