"""Collectives as other tools record them, on their way to columns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from dsprof.trace.format import CollectiveArgs, CollectiveEvent, GroupArgs, StepArgs
from dsprof.trace.table import Collectives, CollectivesBuilder

UNNAMED = "not named"
"""The operation of a communication kernel whose name does not tell it."""

_CHUNK = 10_000
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
    """The groups of a rank: one row for each pair of a name and the ranks that it stands for."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], GroupArgs] = {}

    def number(self, name: str, label: str, ranks: list[int], size: int) -> int:
        """Return the number of a group, a new one where it is new."""
        key = name, ",".join(map(str, ranks))
        if (group := self._groups.get(key)) is None:
            group = GroupArgs(
                id=len(self._groups) + 1,
                key=f"{name}:{key[1]}",
                label="world" if label == "default_pg" else label or name,
                name=name,
                ranks=ranks,
                size=size or len(ranks),
            )
            self._groups[key] = group
        return group.id

    def by_number(self) -> dict[int, GroupArgs]:
        """Return all groups."""
        return {group.id: group for group in self._groups.values()}


class CallRows:
    """Turns calls, in the order of their starts, into rows; numbers them in each group."""

    def __init__(self, steps: Sequence[StepArgs] = ()) -> None:
        self._steps = steps
        self._starts = [step.start_ns for step in steps]
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
            self._builder.add([self._event(call) for call in chunk])

    def build(self) -> Collectives:
        """Return all rows."""
        return self._builder.build()

    def _event(self, call: Call) -> CollectiveEvent:
        seq = call.seq if call.seq >= 0 else self._numbers.get(call.group, -1) + 1
        self._numbers[call.group] = seq
        args = CollectiveArgs(
            id=self._rows,
            group=call.group,
            seq=seq,
            nbytes=call.nbytes,
            elements=call.elements,
            tensors=1 if call.nbytes else 0,
            issue_ns=call.start_ns,
            return_ns=call.start_ns,
            done_ns=call.end_ns,
            pending_ns=call.end_ns,
            dtype=call.dtype,
            is_async=True,
            step=self._step(call.start_ns),
            stream=call.lane,
        )
        self._rows += 1
        return CollectiveEvent(name=call.op, args=args)

    def _step(self, start_ns: int) -> int:
        place = bisect_right(self._starts, start_ns) - 1
        inside = place >= 0 and start_ns < self._steps[place].end_ns
        return self._steps[place].step if inside else -1
