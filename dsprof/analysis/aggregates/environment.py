"""The environment by ranks: variables, files, versions, limits, configuration."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from dsprof.analysis.rank_sets import RankSet, union
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.environment import EnvSnapshot
from dsprof.environment.machine import Accelerator, Adapter
from dsprof.files.redaction import REDACTED
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Group

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)

Facts = Mapping[K, Mapping[V, RankSet]]
"""Name -> value -> the ranks where it has that value."""

_OWN_TO_EACH_RANK = re.compile(r"(?:^|_)(?:RANK|PROCID|LOCALID|NODEID|TASK_PID|GTIDS)$")
"""Numbers that are different on every rank by definition: they would be kept 8,000 times."""

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Which devices a process may use, by number; of the last two one or both may be set."""


@dataclass(frozen=True, slots=True)
class EnvironmentFacts(Aggregate):
    """The environment of a run.

    `variables` holds the values in force: those of the process, replaced by what the C library
    held after the first collective. `hidden` holds only the latter: values that `os.environ`
    does not show. A log tells variables as NCCL took them, integers after parsing, and no others:
    what is absent from it may be set. Engine configurations are those of each rank's first engine,
    with nested keys joined by dots and values as JSON.
    """

    recorded: RankSet = 0  # ranks whose environment is in the trace
    missing: RankSet = 0
    checked: RankSet = 0  # ranks with a group whose calls torch checks beforehand
    logged: RankSet = 0  # of the missing: ranks of which NCCL's log tells variables
    with_engine: RankSet = 0  # ranks that made an engine of DeepSpeed
    variables: Facts[str, str] = field(default_factory=dict)
    hidden: Facts[str, str] = field(default_factory=dict)
    files: Facts[tuple[str, str], str] = field(default_factory=dict)  # (file, name)
    versions: Facts[str, str] = field(default_factory=dict)
    limits: Facts[str, int] = field(default_factory=dict)
    devices: Facts[str, tuple[str, ...]] = field(default_factory=dict)  # "gpus", "network"
    accelerators: Facts[str, tuple[Accelerator, ...]] = field(default_factory=dict)  # of hosts
    adapters: Facts[str, tuple[Adapter, ...]] = field(default_factory=dict)  # of hosts
    machine: Facts[str, str] = field(default_factory=dict)  # empty: not recorded
    precision: Facts[str, str] = field(default_factory=dict)  # of precision.facts
    device_nodes: Facts[str, str] = field(
        default_factory=dict
    )  # "" -> NUMA node of a rank's device
    libraries: Facts[str, str] = field(default_factory=dict)  # path -> "" -> ranks
    redacted: Facts[str, str] = field(default_factory=dict)  # name -> "" -> ranks
    # "backend", "device", "host", "world", and "boot", if the trace has it
    backends: Facts[str, str] = field(default_factory=dict)
    roles: Facts[str, str] = field(default_factory=dict)  # of groups: "tensor", "world"; "": unsaid
    written: Facts[str, str] = field(default_factory=dict)
    digests: Facts[str, str] = field(default_factory=dict)  # of redacted variables
    written_digests: Facts[str, str] = field(default_factory=dict)  # of redacted keys

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> EnvironmentFacts:
        me, header, found = 1 << trace.rank, trace.header, trace.environment
        engine = trace.engines[min(trace.engines)] if trace.engines else None
        place = {"backend": header.backend, "device": header.device, "host": header.host}
        place["world"] = str(header.world_size)
        if header.boot_id:
            place["boot"] = header.boot_id
        logged = trace.log.variables if trace.log and not found else {}
        own = found or EnvSnapshot(variables=logged)
        return cls(
            recorded=me if found else 0,
            missing=0 if found else me,
            checked=me if any(group.is_checked for group in trace.groups.values()) else 0,
            logged=me if logged else 0,
            with_engine=me if engine else 0,
            variables=_of(me, _in_force(own)),
            hidden=_of(me, own.effective),
            files=_of(me, {(file, n): v for file, kv in own.files.items() for n, v in kv.items()}),
            versions=_of(me, header.versions | own.versions),
            limits=_of(me, own.limits),
            devices=_of(me, {"gpus": tuple(own.gpus), "network": tuple(own.network_devices)}),
            accelerators=_of(me, {header.host: tuple(own.accelerators)} if own.machine else {}),
            adapters=_of(me, {header.host: tuple(own.adapters)} if own.machine else {}),
            machine=_of(me, own.machine),
            precision=_of(me, own.precision),
            device_nodes=_of(me, _device_node(own, header.local_rank)),
            libraries=_of(me, dict.fromkeys(own.libraries, "")),
            redacted=_of(me, dict.fromkeys(own.redacted, "")),
            roles=_of(me, {_role(group, header.world_size): "" for group in trace.groups.values()}),
            backends=_of(me, place),
            written=_of(me, dict(_flat(engine.written)) if engine else {}),
            digests=_of(me, own.digests),
            written_digests=_of(me, engine.digests if engine else {}),
        )

    @property
    def uses_nccl(self) -> bool:
        """Whether the run communicates by NCCL or RCCL (torch calls both "nccl")."""
        return any("nccl" in backend for backend in self.backends.get("backend", ()))

    @property
    def uses_gpu(self) -> bool:
        """Whether a rank trains on something else than a CPU."""
        return any(device.split(":")[0] != "cpu" for device in self.backends.get("device", ()))

    @property
    def variables_apart(self) -> Facts[str, str]:
        """`variables`, in which different redacted values are numbered."""
        return _told_apart(self.variables, self.digests)

    @property
    def written_apart(self) -> Facts[str, str]:
        """`written`, in which different redacted values are numbered."""
        return _told_apart(self.written, self.written_digests)

    def settings(self) -> Iterator[tuple[str, str, RankSet]]:
        """Yield name, value in force and ranks of each variable, by name."""
        for name in sorted(self.variables):
            for value, ranks in sorted(self.variables[name].items()):
                yield name, value, ranks

    def differing_keys(self) -> dict[str, dict[str, RankSet]]:
        """Return keys of DeepSpeed that differ; a rank that made no engine has none."""
        engines = (ranks for values in self.written.values() for ranks in values.values())
        return self.differing(self.written_apart, union(engines))

    def differing(
        self, facts: Facts[str, str], among: RankSet = -1
    ) -> dict[str, dict[str, RankSet]]:
        """Return those of `facts` that are not the same on all recorded ranks; "" is unset."""
        found = {}
        for name, values in sorted(facts.items()):
            complete = dict(values)
            if unset := self.recorded & among & ~union(values.values()):
                complete[""] = complete.get("", 0) | unset
            if len(complete) > 1:
                found[name] = complete
        return found


def _of(rank: RankSet, values: Mapping[K, V]) -> dict[K, dict[V, RankSet]]:
    return {name: {value: rank} for name, value in values.items()}


def _told_apart(facts: Facts[str, str], digests: Facts[str, str]) -> Facts[str, str]:
    several = {name: made for name, made in digests.items() if name in facts and len(made) > 1}
    apart = {name: _numbered(facts[name], made) for name, made in several.items()}
    return {**facts, **apart}


def _numbered(values: Mapping[str, RankSet], digests: Mapping[str, RankSet]) -> dict[str, RankSet]:
    """Number the redacted ones of `values` by rank, where digests under one key differ."""
    found: dict[str, RankSet] = {}
    for value, ranks in values.items():
        under: defaultdict[str, list[RankSet]] = defaultdict(list)
        for digest, held in digests.items():
            if REDACTED in value and ranks & held:
                under[digest.partition("-")[0]].append(ranks & held)
        most = max(under.values(), key=lambda held: len(held), default=list[RankSet]())
        parts = sorted(most, key=lambda part: part & -part)
        if len(parts) > 1:
            found |= {f"{value} ({number})": part for number, part in enumerate(parts, 1)}
            ranks &= ~union(parts)
        if ranks:
            found[value] = ranks
    return found


def _device_node(found: EnvSnapshot, local_rank: int) -> dict[str, str]:
    """Return the NUMA node of the device that a rank uses by custom: the one of its local rank."""
    listed = [found.variables[name] for name in _VISIBLE if name in found.variables]
    visible = listed[0].split(",") if listed else list(map(str, range(len(found.accelerators))))
    place = 0 if len(visible) == 1 else local_rank
    if not 0 <= place < len(visible) or len(listed) > 1:
        return {}
    nodes = {str(index): one.numa_node for index, one in enumerate(found.accelerators)}
    node = nodes.get(visible[place], -1)
    return {"": str(node)} if node >= 0 else {}


def _role(group: Group, world_size: int) -> str:
    size = group.size or len(group.ranks)
    return group.role or ("world" if size == world_size else "")


def _in_force(found: EnvSnapshot) -> dict[str, str]:
    merged = found.variables | found.effective
    cleared = {name for name, value in found.effective.items() if value == ""}
    return {
        name: value
        for name, value in merged.items()
        if name not in cleared and not _OWN_TO_EACH_RANK.search(name)
    }


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", msgspec.json.encode(value).decode()
