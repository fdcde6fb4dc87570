"""Whether ranks that wait are stuck, or only slow. Pure: who waits where, and what others do.

A wait proves nothing by its length. A run is stuck where somebody who is awaited provably does not
come: it is gone, stopped, runs no Python, or does nothing at all.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Condition = Literal[
    "idle", "active", "stopped", "gone", "locked", "debugged", "saving", "storeless"
]
"""The activity of a rank outside collectives.

`locked`: a C call holds the interpreter lock; `storeless`: it waits for a store that is gone.
"""

Obstacle = Literal[Condition, "joining", "joined", "deadlock", "unreachable", "unrecorded"]
"""The end of a chain of waits.

`unrecorded`: a rank that has not come to a collective yet, as far as is known: it cannot answer;
`joined`: every rank is in the call, and it does not complete; `joining`: a rank, or its device, may
just have come to it.
"""

_PASSES: frozenset[Obstacle] = frozenset(("active", "joining", "debugged", "saving", "unrecorded"))


@dataclass(frozen=True, slots=True)
class Wait:
    """A call in flight: the n-th of a group, or of sends and receives between two ranks.

    `key` numbers the calls that are awaited, `own` those of this rank: a send awaits a receive.
    """

    key: Hashable
    own: Hashable
    members: tuple[int, ...]
    seq: int
    age_ns: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one rank is.

    `entered` has the number of the last call of each key, `reached` that of the last one to which
    a device, if collectives run on one, has come for certain, `received` that of the last receive
    that is known to be complete.
    """

    waits: tuple[Wait, ...] = ()
    entered: Mapping[Hashable, int] = field(default_factory=dict)
    reached: Mapping[Hashable, int] = field(default_factory=dict)
    received: Mapping[Hashable, int] = field(default_factory=dict)
    condition: Condition = "idle"
    at_store_ns: int = 0  # for how long it has waited for all others at the store


@dataclass(frozen=True, slots=True)
class Judgement:
    """The ends of chains of waits, by rank."""

    obstacles: dict[int, Obstacle]

    @property
    def is_stuck(self) -> bool:
        """Whether a rank provably does not come, and is not being debugged."""
        found = self.obstacles.values()
        return "debugged" not in found and any(one not in _PASSES for one in found)


def judge(
    standings: Mapping[int, Standing], threshold_ns: int, met: Container[int] | None = None
) -> Judgement:
    """Follow the waits of all ranks that wait longer than the threshold.

    `met` are the ranks that have come to a collective before; None: all.
    """
    waits, found = _Waits(standings, threshold_ns, met), dict[int, Obstacle]()
    for rank, standing in standings.items():
        if is_overdue(standing, threshold_ns):
            found |= waits.ends(rank)
    return Judgement(found)


def is_overdue(standing: Standing, threshold_ns: int) -> bool:
    """Say whether a rank waits for too long, for others or for a store."""
    is_at_store = _is_at_store(standing, threshold_ns) or standing.condition == "storeless"
    return is_at_store or bool(_overdue(standing, threshold_ns))


def _is_at_store(standing: Standing, threshold_ns: int) -> bool:
    return standing.at_store_ns >= threshold_ns // 2 > 0


def _overdue(standing: Standing, threshold_ns: int) -> list[Wait]:
    # Ranks that wait for the same one notice at different moments.
    return [wait for wait in standing.waits if wait.age_ns >= threshold_ns // 2]


class _Waits:
    """Who waits for whom. Thousands of ranks wait in few calls, which are looked at once each."""

    def __init__(
        self, standings: Mapping[int, Standing], threshold_ns: int, met: Container[int] | None
    ) -> None:
        self._standings, self._threshold_ns, self._met = standings, threshold_ns, met
        self._not_at_store = {r for r, standing in standings.items() if not standing.at_store_ns}
        self._absent_of: dict[tuple[Hashable, int], set[int]] = {}
        self._youngest_of: dict[tuple[Hashable, int], int] = {}

    def ends(self, first: int) -> Iterator[tuple[int, Obstacle]]:
        """Yield what the waits of a rank end at."""
        seen, pending = {first}, [first]
        has_end = False
        while pending:
            rank = pending.pop()
            obstacle = self._obstacle(rank)
            if obstacle is not None:
                has_end = True
                yield rank, obstacle
                continue
            new = self._awaited(self._standings[rank]) - seen
            seen |= new
            pending += new
        if not has_end:
            yield first, "deadlock"

    def _obstacle(self, rank: int) -> Obstacle | None:
        """Say what keeps a rank; None: it waits for others, that have to be asked."""
        standing = self._standings.get(rank)
        if standing is None:
            return "unreachable" if self._met is None or rank in self._met else "unrecorded"
        if standing.condition not in ("idle", "active"):
            return standing.condition
        if _is_at_store(standing, self._threshold_ns):
            return None if self._not_at_store else "active"
        if not standing.waits:
            return standing.condition
        if not (overdue := _overdue(standing, self._threshold_ns)):
            return "active"
        if any(map(self._absent, overdue)):
            return None
        # All have joined: as long as one of them has just come, it goes on.
        youngest_ns = min(map(self._youngest_ns, overdue))
        return "joining" if youngest_ns < self._threshold_ns // 2 else "joined"

    def _awaited(self, standing: Standing) -> set[int]:
        if _is_at_store(standing, self._threshold_ns):
            return self._not_at_store
        overdue = _overdue(standing, self._threshold_ns)
        return {rank for wait in overdue for rank in self._absent(wait)}

    def _absent(self, wait: Wait) -> set[int]:
        found = self._absent_of.get((wait.key, wait.seq))
        if found is None:
            found = {rank for rank in wait.members if not self._has_entered(rank, wait)}
            self._absent_of[wait.key, wait.seq] = found
        return found

    def _has_entered(self, rank: int, wait: Wait) -> bool:
        standing = self._standings.get(rank)
        if standing is None:
            return False
        # A device does not come to what a process that is no more, or stopped, has issued.
        has_ended = standing.condition in ("gone", "stopped")
        come = standing.reached if has_ended else standing.entered
        return come.get(wait.key, 0) >= wait.seq

    def _youngest_ns(self, wait: Wait) -> int:
        """Return for how long the rank that came last has been in a call."""
        found = self._youngest_of.get((wait.key, wait.seq))
        if found is None:
            found = min(self._age_ns(rank, wait) for rank in wait.members)
            self._youngest_of[wait.key, wait.seq] = found
        return found

    def _age_ns(self, rank: int, wait: Wait) -> int:
        """Return for how long a rank has been in a call; one that has left it, forever.

        A device that may not have come to it yet has been in it for no time at all.
        """
        standing = self._standings[rank]
        if standing.reached.get(wait.key, 0) < wait.seq:
            return 0
        ages_ns = (one.age_ns for one in standing.waits if one.own == wait.key)
        return max(ages_ns, default=wait.age_ns)
