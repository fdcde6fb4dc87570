"""The hardware of a run's hosts, as rules ask for it.

Hardware is what the kernels of the hosts list; accelerators are known by name from
`knowledge/accelerators.csv`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.files.tables import rows

LOCAL_INTERFACES = ("lo", "docker", "veth", "virbr")
"""How interfaces begin which reaches no other host."""


class Model(NamedTuple):
    """A kind of accelerator."""

    architecture: str
    link: str  # "switch", "switch8" (where a host has eight), "direct", "pcie" or "" if not known


def is_seen(facts: EnvironmentFacts) -> bool:
    """Whether hardware was looked for where training runs.

    A run on accelerators of which there is none is judged elsewhere, as on a login node.
    """
    return bool(facts.machine) and (not facts.uses_gpu or accelerators_of_a_host(facts) > 0)


def models(facts: EnvironmentFacts) -> list[Model | None]:
    """Return the kinds of accelerators, None for one that is not known by its name."""
    names = {one.name for held in facts.accelerators.values() for found in held for one in found}
    names |= {name for found in facts.devices.get("gpus", {}) for name in found}
    return [_model(name) for name in sorted(names)]


def architectures(facts: EnvironmentFacts) -> dict[str, str]:
    """Return the architecture of each kind of device, "" where it is not known.

    Devices that ranks or profilers named come before those that the kernels of the hosts list.
    """
    named = {name for names in facts.devices.get("gpus", {}) for name in names}
    named |= {name for names in facts.versions.get("device", {}) for name in names.split(", ")}
    listed = {one.name for held in facts.accelerators.values() for found in held for one in found}
    by_name = {name: _model(name) for name in sorted(named or listed)}
    capabilities = facts.precision.get("capability", {})
    known = _of_capability(next(iter(capabilities))) if len(capabilities) == 1 else ""
    return {name: (found.architecture if found else "") or known for name, found in by_name.items()}


def multiplies(architecture: str, precision: str) -> bool | None:
    """Whether matrix units take a precision; None where the architecture is not known."""
    known = {row["architecture"]: row for row in rows("rules/knowledge/architectures.csv")}
    return known[architecture][precision] == "yes" if architecture in known else None


def _of_capability(capability: str) -> str:
    """Return the architecture of NVIDIA devices of a compute capability: "8.6" is ampere."""
    since = [
        (float(row["since"]), row["architecture"])
        for row in rows("rules/knowledge/architectures.csv")
        if row["since"]
    ]
    return max((one for one in since if one[0] <= float(capability)), default=(0.0, ""))[1]


def vendors(facts: EnvironmentFacts) -> set[str]:
    """Return who made the accelerators of the hosts."""
    return {a.vendor for held in facts.accelerators.values() for found in held for a in found}


def links(facts: EnvironmentFacts) -> set[str]:
    """Return the kinds of active adapters: "infiniband", "roce", "efa", "slingshot"."""
    found = {a for held in facts.adapters.values() for adapters in held for a in adapters}
    return {kind_of(a.driver, a.link) for a in found if a.state == "ACTIVE"} - {""}


def kind_of(driver: str, link: str) -> str:
    """Name the network of an adapter by its driver and link layer, "" for what is none of them."""
    if driver in ("efa", "cxi"):
        return {"efa": "efa", "cxi": "slingshot"}[driver]
    return {"InfiniBand": "infiniband", "Ethernet": "roce"}.get(link, "")


def accelerators_of_a_host(facts: EnvironmentFacts) -> int:
    """Return how many accelerators a host has, the host with most."""
    listed = (len(found) for held in facts.accelerators.values() for found in held)
    visible = map(len, facts.devices.get("gpus", {}))
    return max([*listed, *visible], default=0)


def _model(name: str) -> Model | None:
    return next((model for pattern, model in _known_models() if pattern.search(name)), None)


@cache
def _known_models() -> list[tuple[re.Pattern[str], Model]]:
    return [
        (re.compile(row["pattern"]), Model(row["architecture"], row["link"]))
        for row in rows("rules/knowledge/accelerators.csv")
    ]
