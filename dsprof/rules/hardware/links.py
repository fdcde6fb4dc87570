"""Speeds of the links of a run, by the names of its accelerators and network adapters.

`knowledge/links.csv` holds what others measured with nccl-tests: bus bandwidth in bytes/s of a rank
within a host (`group`: in any group; `eight`: on hosts of eight, which have switches; `all`: of all
accelerators of a host; `peer`: for each other rank), the reached share of an adapter's nominal rate
(`share`), and the size of message at which half of that is reached. Only NCCL and RCCL are known,
and only at large sizes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.run.transfer_speed import Path
from dsprof.files.tables import rows
from dsprof.rules.hardware.hosts import accelerators_of_a_host, kind_of

_UP = re.compile(r"(?!docker|veth|virbr|br-|ib|lo\b)\S+ up (\d{1,9}) Mbit/s")
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) Gb/sec")


class Link(NamedTuple):
    """A row of the table."""

    where: str  # "group", "eight", "all", "peer" or "share"
    pattern: str
    name: str
    bytes_per_s: float
    half_speed_bytes: float


@dataclass(frozen=True, slots=True)
class Expected:
    """The bus bandwidth that a message may be held to, and why."""

    busbw: float  # bytes/s
    source: str
    is_measured: bool = False  # on this machine


@dataclass(frozen=True, slots=True)
class LinkModel:
    """Links within a host and between hosts; None: not known. Network rates are of one rank."""

    within: Link | None
    between: Link | None = None
    between_bytes_per_s: float = 0.0
    accelerators: int = 0  # of a host

    @classmethod
    def of(cls, facts: EnvironmentFacts) -> LinkModel:
        """Find the links by what the ranks recorded."""
        if not facts.uses_nccl:
            return cls(None)
        between, rate = _network(facts)
        return cls(_accelerators(facts), between, rate, accelerators_of_a_host(facts))

    def expected(self, path: Path, nbytes: int) -> Expected | None:
        """Return what messages of `nbytes` may be held to; None where a link is not known."""
        found = [self._within(path)] if path.group_size > path.nodes else []
        found += [self._across(path)] if path.nodes > 1 else []
        known = [one for one in found if one is not None]
        if not found or len(known) < len(found):
            return None
        (busbw, link) = min(known, key=lambda one: one[0])
        return Expected(busbw * nbytes / (nbytes + link.half_speed_bytes), link.name)

    def _within(self, path: Path) -> tuple[float, Link] | None:
        if self.within is None:
            return None
        local, where = path.group_size / path.nodes, self.within.where
        needed = {"eight": self.accelerators >= 8, "all": local == self.accelerators}
        if not needed.get(where, True):
            return None
        return self.within.bytes_per_s * (local - 1 if where == "peer" else 1), self.within

    def _across(self, path: Path) -> tuple[float, Link] | None:
        """Return the bus bandwidth at which every host sends at the rate of its adapters.

        Each of k hosts takes part in (k-1)/k of the array for g = n/k ranks; of an all-to-all each
        rank sends (n-g)/n to other hosts. All-gathers go round a ring, in which each host
        sends at its rate: the rate of g ranks.
        """
        if self.between is None:
            return None
        n, nodes = path.group_size, path.nodes
        if path.op == "all_to_all":
            factor = (n - 1) / (n - n / nodes)
        elif path.op in ("all_gather", "reduce_scatter"):
            factor = n / nodes
        else:
            factor = (n / nodes) * (n - 1) / n * nodes / (nodes - 1)
        return self.between_bytes_per_s * factor, self.between


def accelerator_link(name: str) -> Link | None:
    """Return the link between accelerators of a name within a host; None where not known."""
    return _link(("group", "eight", "all", "peer"), name) if name else None


def _accelerators(facts: EnvironmentFacts) -> Link | None:
    """Return the link that all accelerators share; None if one of them is not known."""
    names = {name for found in facts.devices.get("gpus", {}) for name in found}
    names = names or {a.name for held in facts.accelerators.values() for t in held for a in t}
    found = {accelerator_link(name) for name in names}
    return found.pop() if len(found) == 1 else None


def _network(facts: EnvironmentFacts) -> tuple[Link | None, float]:
    """Return the kind of network, and what of it one rank has on the host that has least."""
    hosts = facts.backends.get("host", {})
    active = {
        host: [a for adapters in held for a in adapters if a.state == "ACTIVE"]
        for host, held in facts.adapters.items()
    }
    kinds = {kind_of(a.driver, a.link) for adapters in active.values() for a in adapters}
    if not kinds:
        return _ethernet(facts)
    link = _link(("share",), kinds.pop()) if len(kinds) == 1 else None
    rates = []
    for host, adapters in active.items():
        ranks = max(hosts.get(host, 0).bit_count(), 1)
        known = sorted((rate for a in adapters if (rate := _rate(a.rate))), reverse=True)
        rates.append(sum(known[:ranks]) / ranks)
    if link is None or not min(rates):
        return None, 0.0
    return link, min(rates) * link.bytes_per_s


def _ethernet(facts: EnvironmentFacts) -> tuple[Link | None, float]:
    """Return what one rank has of the fastest interface of the host with the slowest one."""
    ranks = max((held.bit_count() for held in facts.backends.get("host", {}).values()), default=1)
    fastest = [
        max((int(found[1]) for name in names if (found := _UP.fullmatch(name))), default=0)
        for names in facts.devices.get("network", {})
    ]
    link = _link(("share",), "ethernet")
    if link is None or not fastest or not min(fastest):
        return None, 0.0
    return link, min(fastest) * 1e6 / 8 * link.bytes_per_s / ranks


def _rate(text: str) -> float:
    """Return bytes/s of "400 Gb/sec (4X NDR)", 0 where there is no number."""
    found = _RATE.match(text)
    return float(found[1]) * 1e9 / 8 if found else 0.0


def _link(where: tuple[str, ...], name: str) -> Link | None:
    return next((x for x in _links() if x.where in where and re.search(x.pattern, name)), None)


@cache
def _links() -> list[Link]:
    return [
        Link(
            row["where"],
            row["pattern"],
            row["link"],
            float(row["bytes_per_s"]),
            float(row["half_speed_bytes"]),
        )
        for row in rows("rules/knowledge/links.csv")
    ]
