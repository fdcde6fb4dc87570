"""Process groups: described once, distinguished across re-initialisation, counted separately."""

from __future__ import annotations

import hashlib
import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import Any

import torch.distributed as dist

from dsprof.hooks.wire.group_roles import find_roles
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Group

_WRAPPER = "_ProcessGroupWrapper"  # torch built without gloo does not have it
_HOST_BACKENDS = ("gloo", "mpi", "fake", "ucc")


class GroupState:
    """A group's description and its counters."""

    __slots__ = ("collectives", "group", "is_host", "point_to_point", "ref")

    def __init__(self, group: Group, ref: weakref.ref[Any]) -> None:
        self.group = group
        self.ref = ref
        self.is_host = group.backend in _HOST_BACKENDS
        self.collectives: Iterator[int] = itertools.count(1)
        self.point_to_point: dict[tuple[int, str], Iterator[int]] = {}

    def next_seq(self, op: str, peer: int) -> int:
        """Count a point-to-point operation: n-th of (peer, direction) here meets n-th there."""
        counter = self.point_to_point.setdefault((peer, op), itertools.count(1))
        return next(counter)


_LOOKED_UP = 64
"""The roles of so many groups are looked up at once: a program may make new ones all the time."""

_NEXT_LOOK = 15
"""The first step after step 0 at which roles are looked for again."""


class Groups:
    """The groups seen, found by the identity of the ProcessGroup without keeping it alive.

    Hooks share it: a group's collectives count once. Any thread that communicates reads `known`
    without a lock; a group is described with `_describing` held.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._ids = recorder, itertools.count(1)
        self.known: dict[int, GroupState] = {}  # by identity; check `ref`, for that may be reused
        self.roles: weakref.WeakKeyDictionary[Any, str] = (
            weakref.WeakKeyDictionary()
        )  # as hooks say
        self._by_key: dict[str, GroupState] = {}  # torch may make another object for a group
        self._with_ranks: dict[str, GroupState] = {}
        self._world: weakref.ref[Any] | None = None
        self._generation = 0
        self._describing = threading.RLock()
        recorder.progress.rare_step_listeners.append(self._look_again)

    def state(self, pg: Any) -> GroupState:
        """Return the state of `pg`, describing the group if it is new."""
        state = self.known.get(id(pg))
        if state is not None and state.ref() is pg:
            return state
        with self._describing:  # two counters for one group would number collectives twice
            return self._describe(pg)

    def _describe(self, pg: Any) -> GroupState:
        self._follow_generation()
        self._forget_ranks()
        ranks, name, backend = _facts(pg)
        key = _key(self._generation, name, ranks)
        known = self._by_key.get(key)
        if known is not None:
            known.ref, known.group.ranks = weakref.ref(pg), ranks
            self.known[id(pg)] = self._with_ranks[key] = known
            return known
        number = next(self._ids)
        group = Group(
            id=number,
            key=key,
            label=_label(pg, name, len(ranks)),
            name=name,
            ranks=ranks,
            size=len(ranks),
            backend=backend,
            generation=self._generation,
            role=self._roles([pg])[0] if number <= _LOOKED_UP else self.roles.get(pg, ""),
            is_checked=_is_checked(pg),
        )
        state = GroupState(group, weakref.ref(pg))
        self._by_key[key] = self.known[id(pg)] = self._with_ranks[key] = state
        self._define(group)
        return state

    def _forget_ranks(self) -> None:
        """Drop the ranks of groups that are gone: a program may make new ones all the time."""
        for key, state in list(self._with_ranks.items()):
            if state.ref() is None:
                state.group.ranks = []
                del self._with_ranks[key]

    def _define(self, group: Group) -> None:
        self._recorder.outbox.define(copy(group))  # its role may change before it is written

    def _roles(self, groups: list[Any]) -> list[str]:
        found = find_roles(groups) if groups else []
        return [role or self.roles.get(pg, "") for role, pg in zip(found, groups, strict=True)]

    def _look_again(self, step: int) -> None:
        """Look for roles not known yet: a library may name a group after its first collective.

        It costs ever less, and a late engine is not missed. A run that has just been switched on
        pays for one look only.
        """
        if 0 < step < _NEXT_LOOK:
            return
        try:
            states = [state for state in list(self._with_ranks.values()) if not state.group.role]
            known = [(state, pg) for state in states if (pg := state.ref()) is not None]
            roles = self._roles([pg for _, pg in known])
            for (state, _), role in zip(known, roles, strict=True):
                if role:
                    state.group.role = role
                    self._define(state.group)
        except Exception as error:
            self._recorder.fail("groups", error)

    def _follow_generation(self) -> None:
        """Count re-initialisations: after an elastic restart names and ranks repeat."""
        world = dist.group.WORLD
        if world is None or (self._world is not None and self._world() is world):
            return
        self._world = weakref.ref(world)
        self._generation += 1


def _facts(pg: Any) -> tuple[list[int], str, str]:
    """Return global ranks in order of group rank, name and backend."""
    try:
        return list(dist.get_process_group_ranks(pg)), str(pg.group_name), backend_of(pg)
    except (KeyError, ValueError, RuntimeError):  # made by hand, unknown to torch.distributed
        ranks = getattr(pg, "ranks", None)  # deepspeed.comm's own kind of group
        return list(ranks or range(pg.size())), "unregistered", _name(pg)


def backend_of(pg: Any = None) -> str:
    """Return the backend of a group, or of the default one, such as "gloo".

    Where it has one for each type of device, these are as in "cpu:gloo,cuda:nccl": torch calls
    that "undefined" if the program did not choose.

    Raises:
        ValueError: torch.distributed does not know the group.
    """
    name = str(dist.get_backend(pg))
    if name == "undefined":
        with suppress(AssertionError, TypeError):  # of a group that torch has not configured itself
            name = str(dist.get_backend_config(pg))
    by_device = {part.rpartition(":")[2] for part in name.split(",")}
    return by_device.pop() if len(by_device) == 1 else name


def _is_checked(pg: Any) -> bool:
    """Whether torch has wrapped the group's backend, as it does with the debug level DETAIL."""
    try:
        backends = [pg._get_backend(device) for device in pg._device_types]
    except Exception:  # groups in Python, and devices without a backend
        return False
    return any(type(backend).__name__ == _WRAPPER for backend in backends)


def _name(pg: Any) -> str:
    name = getattr(pg, "name", type(pg).__name__)
    return str(name() if callable(name) else name)


def _key(generation: int, name: str, ranks: list[int]) -> str:
    digest = hashlib.blake2b(",".join(map(str, sorted(ranks))).encode(), digest_size=6).hexdigest()
    return f"{generation}/{name}/{len(ranks)}/{digest}"


def _label(pg: Any, name: str, size: int) -> str:
    description = str(getattr(pg, "group_desc", "") or "")
    if pg is dist.group.WORLD or description == "default_pg":
        return "world"
    if description and description != "undefined":
        return description
    return "all ranks" if size == dist.get_world_size() else f"group {name}"
