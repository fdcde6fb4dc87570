"""How long the transfer of like collectives takes in each of several like groups.

The last rank to enter does not wait: what differs between the groups is how they are connected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsprof.analysis.alignment.matching import Matched
from dsprof.analysis.rank.grouping import group_rows
from dsprof.analysis.run.transfer_speed import of_the_last

LEAST_CALLS = 5


class Kind(NamedTuple):
    """What groups must have in common to be compared."""

    op: int  # place in FAMILIES of the aggregate
    nbytes: int
    size: int
    role: str
    nodes: int  # groups inside a node are not compared with groups across nodes


@dataclass(frozen=True, slots=True)
class Transfer:
    """One kind of collective in one group."""

    ranks: tuple[int, ...]
    label: str
    calls: int  # of the steps asked for, of one rank
    median_ns: int


def transfers(matched: Iterable[Matched]) -> dict[Kind, list[Transfer]]:
    """Return the transfers of each kind that a group has at least five of, group by group."""
    found: defaultdict[Kind, list[Transfer]] = defaultdict(list)
    for one in matched:
        nbytes, time_ns, fair = of_the_last(one)
        usable = np.flatnonzero(fair)
        if not len(usable):
            continue
        op, nbytes, took = one.op[0, usable], nbytes[usable], time_ns[usable]
        kinds = group_rows([op, nbytes])
        for number, first in enumerate(kinds.first):
            mine = took[kinds.of_row == number]
            if len(mine) >= LEAST_CALLS:
                what = int(op[first]), int(nbytes[first])
                kind = Kind(*what, one.group.size, one.group.role, one.nodes)
                row = Transfer(
                    one.ranks, one.group.label, len(mine) * one.stride, int(np.median(mine))
                )
                found[kind].append(row)
    return dict(found)
