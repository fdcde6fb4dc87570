"""Settings that differ: configuration, environment, versions, each as name and text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dsprof.diagnosis.comparison.model import Change
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.environment import Difference, EngineSettings

_LAUNCH = ("DSPROF", "PYTHON_DSPROF", "MASTER_", "TORCHELASTIC_", "SLURM_", "PMI_", "OMPI_", "RAY_")
_OF_A_RANK = ("RANK", "LOCAL_RANK", "GROUP_RANK")
"""Variables that name a launch, not a setting: they differ between any two runs."""


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """List the names whose values are not the same, in alphabetical order."""
    return [
        Change(name=name, before=before.get(name), after=after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def are_recorded(diagnosis: Diagnosis) -> bool:
    """Whether a run says anything of what was set; profiles of other tools do not."""
    return _has_environment(diagnosis) or bool(diagnosis.environment.written_config)


def _has_environment(diagnosis: Diagnosis) -> bool:
    """Whether variables were recorded: other tools know versions without them."""
    found = diagnosis.environment
    has_own_record = diagnosis.quality.is_recorded and found.versions
    return bool(found.variables or found.limits or has_own_record)


def compared(before: Diagnosis, after: Diagnosis) -> list[str]:
    """Name what both runs say something of; of the configuration one suffices."""
    runs = (before, after)
    parts = {
        "configuration": any(map(configuration, runs)),
        "environment": all(map(_has_environment, runs)),
        "versions": all(map(versions, runs)),
    }
    return [name for name, is_known in parts.items() if is_known]


def configuration_changes(before: Diagnosis, after: Diagnosis) -> list[Change]:
    """Compare what is in force; where only one run is DeepSpeed's, list what its user wrote."""
    first, second = configuration(before), configuration(after)
    if bool(first) == bool(second):
        return changes(first, second)
    names = [made.run.setup or "no DeepSpeed configuration" for made in (before, after)]
    written = _written(before) | _written(after)  # one of them is empty
    return [
        Change("framework", *names),
        *(one for one in changes(first, second) if one.name in written),
    ]


def configuration(diagnosis: Diagnosis) -> dict[str, str]:
    """Return the DeepSpeed configuration as dotted keys: what is in force, else as written."""
    settings = _written(diagnosis)
    for prefix, engine in _engines(diagnosis):
        settings |= {f"{prefix}{key}": value for key, value in _flat(engine.effective)}
    return settings


def _written(diagnosis: Diagnosis) -> dict[str, str]:
    return {
        f"{prefix}{key}": value
        for prefix, engine in _engines(diagnosis)
        for key, value in _flat(engine.written)
    }


def _engines(diagnosis: Diagnosis) -> Iterator[tuple[str, EngineSettings]]:
    """Yield each engine with what its keys begin with."""
    found = diagnosis.environment
    yield "", EngineSettings(0, written=found.written_config, effective=found.effective_config)
    for one in found.engines[1:]:  # the first is the one above
        yield f"engine {one.engine}: ", one


def environment(diagnosis: Diagnosis) -> dict[str, str]:
    """Return variables, configuration files, limits and devices."""
    found = diagnosis.environment
    facts = {**found.variables, **found.effective}
    facts |= {one.name: _spread(one) for one in found.differences}
    facts = {
        name: value
        for name, value in facts.items()
        if not name.startswith(_LAUNCH) and name not in _OF_A_RANK
    }
    for file, settings in found.files.items():
        facts |= {f"{file}: {name}": value for name, value in settings.items()}
    facts |= {f"limit {name}": str(value) for name, value in found.limits.items()}
    facts |= {"backend": diagnosis.run.backend, "GPUs": _counted(found.gpus)}
    facts["network devices"] = _counted(found.network_devices)
    return {name: value for name, value in facts.items() if value}


def versions(diagnosis: Diagnosis) -> dict[str, str]:
    """Return the versions of libraries; those that differ between ranks are listed separately."""
    return diagnosis.run.versions | diagnosis.environment.versions


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif name:
        yield name, json.dumps(value, sort_keys=True)


def _spread(difference: Difference) -> str:
    values = sorted(difference.values.items(), key=lambda item: item[1])
    return "differs between ranks: " + ", ".join(value or "unset" for value, _ in values)


def _counted(devices: list[str]) -> str:
    counts = Counter(devices)
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in counts.items())
