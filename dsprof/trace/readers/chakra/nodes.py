"""Communication in the nodes of a Chakra graph.

Numbers of fields are those of `et_def.proto` of mlcommons/chakra, which have not changed since its
first release but for the metadata: that had no version before.
"""

from __future__ import annotations

from typing import NamedTuple

from dsprof.trace.readers import process_groups
from dsprof.trace.readers.call_rows import UNNAMED, Call, GroupTable
from dsprof.trace.readers.chakra.protobuf import fields
from dsprof.trace.readers.process_groups import ProcessGroups
from dsprof.trace.schema import LARGEST_WORLD

# Fields of Node, IOInfo and AttributeProto.
_NAME, _TYPE, _INPUTS, _ATTRIBUTE = 2, 3, 8, 10
_VALUES = 1
_ATTRIBUTE_NAME, _BOOLS, _TEXT = 1, 28, 29
_ZIGZAG = (15, 17)
_NO_WHOLE_NUMBERS = (3, 5)

_POINT_TO_POINT = {5: "send", 6: "recv"}
_COMMUNICATE = (*_POINT_TO_POINT, 7)
_LIST = process_groups.LIST.encode()
COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",  # of blocks
    "barrier",
)
_SHARES = ("all_gather", "gather")
"""Their size is the share of one rank: graphs tell what a rank puts in."""

_LONGEST_NAME = 200
_MOST_DIMENSIONS = 16
_LARGEST_BYTES = 2**40


class GraphCall(NamedTuple):
    """The communication of a node."""

    call: Call
    is_of_host: bool


class GraphCalls:
    """Turns nodes into calls, in the order of the file."""

    def __init__(self, table: GroupTable) -> None:
        self._table = table
        self._numbered: dict[str, tuple[int, int]] = {}
        self.groups = ProcessGroups()
        self.has_unsized = False

    def of(self, message: bytes) -> GraphCall | None:
        """Return the communication of a node, if it says what it communicates.

        Raises:
            ValueError: it is no node.
        """
        kind, name, inputs = 0, b"", b""
        attributes: list[bytes] = []
        for number, value in fields(message):
            if isinstance(value, int):
                kind = value if number == _TYPE else kind
            elif number == _ATTRIBUTE:
                attributes.append(value)
            elif number == _NAME:
                name = value
            elif number == _INPUTS:
                inputs = value
            if kind and name and kind not in _COMMUNICATE and name != _LIST:
                return None  # as most are
        if not kind:
            raise ValueError("a node of no type")
        if name == _LIST:
            self._learn(inputs)
        return self._call(kind, attributes) if kind in _COMMUNICATE else None

    def _learn(self, inputs: bytes) -> None:
        """Take in the groups, JSON within what Python prints of a list of it."""
        for number, value in fields(inputs):
            if number == _VALUES and isinstance(value, bytes):
                self.groups.learn(value[value.find(b"[{") : value.rfind(b"}]") + 2])
        self._numbered.clear()

    def _call(self, kind: int, attributes: list[bytes]) -> GraphCall | None:
        told = dict(map(attribute, attributes))
        is_of_host = bool(told.get("is_cpu_op"))
        if is_of_host and not {"comm_type", "comm_size"} & told.keys():
            return None
        op = _POINT_TO_POINT.get(kind) or _operation(told.get("comm_type"))
        number, group_size = self._group(told)
        nbytes = told.get("comm_size")
        if not isinstance(nbytes, int) or not 0 <= nbytes < _LARGEST_BYTES:
            nbytes = 0
        if op in _SHARES:
            self.has_unsized |= not group_size
            nbytes *= group_size
        return GraphCall(Call(op, number, 0, nbytes, "", 0, 0, 0), is_of_host)

    def _group(self, told: dict[str, int | str]) -> tuple[int, int]:
        """Return number and size of the group of a node, a size of 0 where it is not known."""
        name = str(told.get("pg_name") or told.get("involved_dim") or "unknown")[:_LONGEST_NAME]
        if (found := self._numbered.get(name)) is None:
            found = self._numbered[name] = self._enter(name)
        return found

    def _enter(self, name: str) -> tuple[int, int]:
        group = self.groups.get(name)
        if group is None:
            return self._table.number(name, name, [], 0), 0
        size = min(max(group.group_size, len(group.ranks)), LARGEST_WORLD)
        label = group.pg_desc or "default_pg"
        return self._table.number(name, label, group.ranks, size), size


def attribute(message: bytes) -> tuple[str, int | str]:
    """Read name and value of an attribute; fractions and other lists than of flags count as 0.

    Raises:
        ValueError: it is none.
    """
    name, value = "", 0  # type: str, int | str
    for number, given in fields(message):
        if isinstance(given, int):
            value = 0 if number in _NO_WHOLE_NUMBERS else _signed(number, given)
        elif number == _ATTRIBUTE_NAME:
            name = given.decode("utf-8", "replace")
        elif number == _TEXT:
            value = given.decode("utf-8", "replace")
        elif number == _BOOLS:
            value = _dimensions(given)
    return name, value


def _operation(kind: int | str | None) -> str:
    if not isinstance(kind, int) or kind not in range(len(COLLECTIVES)):
        return UNNAMED
    return COLLECTIVES[kind]


def _signed(number: int, given: int) -> int:
    return (given >> 1) ^ -(given & 1) if number in _ZIGZAG else given


def _dimensions(flags: bytes) -> str:
    """Name the dimensions of the network that take part."""
    given = [value for number, value in fields(flags) if number == _VALUES]
    each = given[0] if given and isinstance(given[0], bytes) else given
    return "dimensions " + ",".join(
        str(i) for i, flag in enumerate(each[:_MOST_DIMENSIONS]) if flag
    )
