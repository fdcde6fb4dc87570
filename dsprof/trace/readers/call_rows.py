"""Collectives as other tools record them, on their way to columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from dsprof.trace.columns import IntArray
from dsprof.trace.rank_trace import Collectives, CollectivesBuilder
from dsprof.trace.schema import Group, Step

UNNAMED = "not named"
"""The operation of a communication kernel whose name does not contain it."""

_CHUNK = 10_000
_FOREVER = 2**63 - 1
_MOST_ELEMENTS = 2**58
_ELEMENT_BYTES = {
    "double": 8, "long": 8, "complexfloat": 8, "complexdouble": 16, "float": 4, "int": 4,
    "half": 2, "bfloat16": 2, "short": 2, "byte": 1, "char": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


class Call(NamedTuple):
    """A collective, on a stream or a thread; an end of 0 was not recorded.

    `seq` is its number in its group, where the tool counts them.
    """

    op: str
    group: int
    elements: int
    nbytes: int  # of the total array; 0 where it is not known
    dtype: str
    lane: int
    start_ns: int
    end_ns: int
    seq: int = -1


def message(op: str, taken: int | None, given: int | None, dtype: str) -> tuple[int, int]:
    """Return elements and bytes of a collective's total array, from torch's own metadata.

    `taken` and `given` are the elements of its input and its output, `dtype` torch's name of the
    type ("BFloat16"); bytes are 0 where the type is not known.
    """
    elements = max((given if "gather" in op.lower() else taken) or 0, 0)
    return elements, min(elements, _MOST_ELEMENTS) * _ELEMENT_BYTES.get(dtype.lower(), 0)


class GroupTable:
    """The groups of a rank: one row for each pair of a name and its ranks."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], Group] = {}

    def number(self, name: str, label: str, ranks: list[int], size: int) -> int:
        """Return the number of a group, a new one where it is new."""
        key = name, ",".join(map(str, ranks))
        if (group := self._groups.get(key)) is None:
            group = Group(
                id=len(self._groups) + 1,
                key=f"{name}:{key[1]}",
                label="world" if label == "default_pg" else label or name,
                name=name,
                ranks=ranks,
                size=size or len(ranks),
            )
            self._groups[key] = group
        return group.id

    def by_number(self) -> dict[int, Group]:
        """Return all groups."""
        return {group.id: group for group in self._groups.values()}


class CallRows:
    """Turns calls, in the order of their starts, into rows; numbers them in each group."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        # A step before all others, so that every time has one that began before it.
        self._steps = [Step(-1, -_FOREVER, -_FOREVER), *steps]
        self._builder = CollectivesBuilder()
        self._numbers: dict[int, int] = {}
        self._rows = 0

    def add(self, calls: Iterable[Call]) -> None:
        """Append rows, a chunk at a time.

        Raises:
            OverflowError: a number is beyond 64 bits.
        """
        rest = iter(calls)
        while chunk := list(islice(rest, _CHUNK)):
            self._append(chunk)

    def build(self) -> Collectives:
        """Return all rows."""
        return self._builder.build()

    def _append(self, calls: Sequence[Call]) -> None:
        op, group, elements, nbytes, dtype, lane, start, end, _ = zip(*calls, strict=True)
        columns = (group, elements, nbytes, lane, start, end, list(map(self._number, calls)))
        groups, sizes, totals, lanes, starts, ends, numbers = np.array(columns, np.int64)
        known = {
            "id": np.arange(self._rows, self._rows + len(calls)),
            "group": groups,
            "seq": numbers,
            "nbytes": totals,
            "elements": sizes,
            "tensors": (totals != 0).astype(np.int64),
            "issue_ns": starts,
            "return_ns": starts,
            "done_ns": ends,
            "pending_ns": ends,
            "is_async": np.ones(len(calls), np.bool_),
            "step": self._step_at(starts),
            "stream": lanes,
        }
        self._builder.add_columns({"op": op, "dtype": dtype}, known)
        self._rows += len(calls)

    def _number(self, call: Call) -> int:
        seq = call.seq if call.seq >= 0 else self._numbers.get(call.group, -1) + 1
        self._numbers[call.group] = seq
        return seq

    def _step_at(self, times: IntArray) -> IntArray:
        """Return the step in which each time lies, -1 for none."""
        fields = [(step.step, step.start_ns, step.end_ns) for step in self._steps]
        numbers, starts, ends = np.array(fields, np.int64).T
        place = np.searchsorted(starts, times, side="right") - 1
        return np.where(times < ends[place], numbers[place], -1)
