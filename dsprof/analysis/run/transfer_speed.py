"""How fast collectives are after all ranks have arrived: by operation, group and size.

The last rank to enter does not wait, so its time in flight is that of the transfer. It is the
shortest of all ranks', each by its own clock. Clocks say only which ranks surely came earlier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.arrivals import FAMILIES, Arrivals
from dsprof.analysis.alignment.matching import GroupFacts, Matched
from dsprof.analysis.collectives import SIZE_CLASSES, SIZE_EDGES_BYTES, busbw_factor
from dsprof.analysis.rank.intervals import Array
from dsprof.trace.schema import ROLES


class Path(NamedTuple):
    """Transfers of one row have this in common; `nodes` are hosts on which the group has ranks."""

    op: str
    group: str
    group_size: int
    nodes: int
    size_class: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """The call of median speed among `calls` isolated ones.

    `quick_algbw` (bytes a second) is reached by a quarter of them: other programs slow some calls,
    a link all.
    """

    path: Path
    calls: int
    nbytes: int
    time_ns: int
    quick_algbw: float

    @property
    def algbw(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.time_ns * 1e9

    @property
    def busbw(self) -> float:
        """Bytes a second that the links carried."""
        return self.algbw * self._factor

    @property
    def quick_busbw(self) -> float:
        """Bytes a second that the links carried in the quicker calls."""
        return self.quick_algbw * self._factor

    @property
    def _factor(self) -> float:
        return busbw_factor(self.path.op, self.path.group_size) or 0.0


def transfers(arrivals: Arrivals, steps: Sequence[int] | None = None) -> list[Transfer]:
    """Return the speeds of collectives that all ranks of their group recorded, in some steps."""
    sizes: defaultdict[Path, list[Array]] = defaultdict(list)
    times: defaultdict[Path, list[Array]] = defaultdict(list)
    for one in arrivals.matched:
        if one.is_whole:
            for path, nbytes, time_ns in _by_path(one, steps):
                sizes[path].append(nbytes)
                times[path].append(time_ns)
    rows = (_row(path, np.concatenate(sizes[path]), np.concatenate(times[path])) for path in sizes)
    return sorted(rows, key=lambda row: (row.path.group, row.path.op, row.nbytes))


def _by_path(one: Matched, steps: Sequence[int] | None) -> Iterable[tuple[Path, Array, Array]]:
    calls = of_the_last(one, steps)
    sizes = np.searchsorted(SIZE_EDGES_BYTES, calls.nbytes, "right")
    for op, size in sorted(set(zip(calls.op.tolist(), sizes.tolist(), strict=True))):
        chosen = (calls.op == op) & (sizes == size)
        path = Path(FAMILIES[op], _name(one.group), one.group.size, one.nodes, SIZE_CLASSES[size])
        if busbw_factor(path.op, path.group_size):
            yield path, calls.nbytes[chosen], calls.time_ns[chosen]


class LastCalls(NamedTuple):
    """Calls that are fair to judge, in columns, as their last rank saw them."""

    op: Array
    nbytes: Array
    time_ns: Array


def of_the_last(one: Matched, steps: Sequence[int] | None) -> LastCalls:
    """Return the calls of a group, of all steps or of some."""
    parts = [LastCalls(*np.zeros((3, 0), np.int64))]
    for part in one.parts():
        some = part if steps is None else part.in_steps(steps)
        flight = some.done.astype(np.int64) - some.arrive
        calls, last = np.arange(flight.shape[1]), np.argmin(flight, axis=0)
        nbytes, time_ns = some.nbytes[last, calls], flight[last, calls]
        # Where the end of the last rank is not known, the shortest time has a wait in it.
        is_earlier = some.arrive.max(axis=0) - some.arrive > some.doubt_ns
        fair = some.isolated[last, calls] & (some.isolated | is_earlier).all(axis=0)
        fair &= some.agrees & (nbytes > 0) & (time_ns > 0)
        parts.append(LastCalls(some.op[0, fair], nbytes[fair], time_ns[fair]))
    return LastCalls(*map(np.concatenate, zip(*parts, strict=True)))


def _row(path: Path, nbytes: Array, time_ns: Array) -> Transfer:
    speeds = nbytes / time_ns * 1e9
    order = np.argsort(speeds, kind="stable")
    middle, quick = order[len(order) // 2], order[len(order) * 3 // 4]
    sizes = int(nbytes[middle]), int(time_ns[middle])
    return Transfer(path, len(order), *sizes, quick_algbw=float(speeds[quick]))


def _name(group: GroupFacts) -> str:
    """Return the label of a group, or its role if it has one and the label is no name."""
    is_named = not group.label.startswith("group ") and group.label not in ("world", "all ranks")
    return group.label if is_named else ROLES.get(group.role, group.label)
