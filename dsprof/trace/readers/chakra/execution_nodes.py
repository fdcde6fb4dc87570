"""Communication in the nodes of an execution trace.

The arguments of `record_param_comms` in all schemas: tensors (absent for a wait), number, group,
rank or root, name of the collective, splits in and out, since 1.1.0 first rank and stride of the
group, and the size of the group. What recent schemas repeat as attributes is taken from there.
Early releases of torch know a group by an address, and its size only by the splits.
Backends on CPUs write no such node: there the span of the collective has tensors and no group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from dsprof.trace.readers import process_groups
from dsprof.trace.readers.call_rows import Call, GroupTable, message
from dsprof.trace.readers.kineto.events import CPU_COLLECTIVES
from dsprof.trace.readers.process_groups import ProcessGroup, ProcessGroups
from dsprof.trace.schema import LARGEST_WORLD, Group

OF_INTEREST = re.compile(
    rb'"name"\s*:\s*"(?:record_param_comms|## process_group:init ##|(?:gloo|mpi|ucc):[^"]*)"'
)

_NO_COLLECTIVES = frozenset({"", "wait", "init"})
_OF_ALL = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Collectives without a root: where others name their root, these name the caller's own rank."""
_NAMED_TENSOR = 6  # id, storage, offset, elements, bytes of one, device
_MOST_GROUPS = 1 << 12


class _Values(msgspec.Struct):
    values: list[Any] = []
    types: list[Any] = []


class _Attribute(msgspec.Struct):
    name: str = ""
    value: Any = None


class Node(msgspec.Struct):
    """A node; in schema 1.0.1 values and types of arguments are parallel lists."""

    name: str = ""
    inputs: _Values | list[Any] = msgspec.field(default_factory=list)
    input_types: list[Any] = []
    outputs: _Values | list[Any] = msgspec.field(default_factory=list)
    attrs: list[_Attribute] = []


class _Arguments(NamedTuple):
    op: str
    group: Any  # a name and a description, or an address
    rank: Any
    first: Any
    stride: Any
    size: Any


class _Member(NamedTuple):
    """A rank's words for a group that it does not list: its own rank, -1, and the size, 0."""

    rank: int
    size: int


class NodeCalls:
    """Turns nodes into calls, and collects what they say about the rank that made them."""

    def __init__(self, groups: GroupTable) -> None:
        self._groups = groups
        self._known = ProcessGroups()
        self._unlisted: dict[Any, _Member] = {}  # by address
        self._rank = -1
        self.world_size = 0
        self.device = "cpu"

    @property
    def backend(self) -> str:
        """The backend of the first group that has one."""
        return self._known.backend

    @property
    def _world(self) -> _Member | None:
        """Return the only group of the process, where all it says of it is an address."""
        is_only = len(self._unlisted) == 1 and not self._known.world_size
        return next(iter(self._unlisted.values())) if is_only else None

    @property
    def rank(self) -> int:
        """The rank that a collective names, -1 where none does."""
        return self._world.rank if self._rank < 0 and self._world else self._rank

    def named(self, groups: Mapping[int, Group]) -> dict[int, Group]:
        """Return the groups, the only one as that of all ranks: each of them has its address."""
        if (world := self._world) is None:
            return dict(groups)
        told = {"name": "world", "key": "world:", "label": "world", "size": world.size}
        return {n: msgspec.structs.replace(group, **told) for n, group in groups.items()}

    def of(self, node: Node) -> Iterator[Call]:
        """Yield the collective of a node, if it is one."""
        if node.name == process_groups.LIST:
            self._known.learn(next(iter(_values(node.inputs)), None))
            self.world_size = max(self.world_size, self._known.world_size)
        elif node.name == "record_param_comms":
            arguments = _arguments(node)
            if arguments is not None and arguments.op not in _NO_COLLECTIVES:
                yield self._call(node, arguments)
        elif node.name.startswith(CPU_COLLECTIVES):
            yield self._cpu_call(node)

    def _call(self, node: Node, arguments: _Arguments) -> Call:
        given = {attribute.name: attribute.value for attribute in node.attrs}
        name, label, group = self._group(arguments.group, given)
        size = _number(given.get("pg_size", arguments.size))
        if group is None and isinstance(arguments.group, int):
            self._learn(arguments, size)
        self._place(arguments, size, group)
        dtype = str(given.get("dtype") or "")
        taken, made = _number(given.get("in_msg_nelems")), _number(given.get("out_msg_nelems"))
        elements, nbytes = message(arguments.op, taken, made, dtype)
        if "in_msg_nelems" not in given:
            side = node.outputs if "gather" in arguments.op else node.inputs
            elements, nbytes = _sums(_values(side))
        if any(tensor[5].startswith("cuda") for tensor in _tensors(_values(node.inputs))):
            self.device = "cuda"
        number = self._groups.number(name, label, group.ranks if group else [], size)
        return Call(arguments.op, number, elements, nbytes, dtype, 0, 0, 0)

    def _cpu_call(self, node: Node) -> Call:
        op = node.name.split(":", 1)[1]
        elements, nbytes = _sums(_values(node.inputs))
        if "gather" in op:  # the input is one rank's part of the total, of how many is not said
            elements = nbytes = 0
        group = self._groups.number("", "unknown", [], 0)
        return Call(op, group, elements, nbytes, "", 0, 0, 0)

    def _group(self, told: Any, given: dict[str, Any]) -> tuple[str, str, ProcessGroup | None]:
        """Return name, label and definition of a group."""
        pair = isinstance(told, list) and len(told) == 2
        name, label = map(str, told) if pair else (str(told), "")
        name = str(given.get("pg_name") or name)
        group = self._known.get(name)
        if group is None:
            return name, label, None
        return str(group.pg_name), label or group.pg_desc or "default_pg", group

    def _learn(self, arguments: _Arguments, size: int) -> None:
        known = self._unlisted.get(arguments.group, _Member(-1, 0))
        rank = _number(arguments.rank) if _names_caller(arguments.op) else known.rank
        found = _Member(rank, max(known.size, min(size, LARGEST_WORLD)))
        if arguments.group in self._unlisted or len(self._unlisted) < _MOST_GROUPS:
            self._unlisted[arguments.group] = found
            self.world_size = max(self.world_size, found.size)

    def _place(self, arguments: _Arguments, size: int, group: ProcessGroup | None) -> None:
        """Take the rank from a collective that names it, where the ranks of the group are known."""
        rank = arguments.rank
        if self._rank >= 0 or not _names_caller(arguments.op) or not isinstance(rank, int):
            return
        if not 0 <= rank < min(size, LARGEST_WORLD):
            return
        first, stride = arguments.first, arguments.stride
        if isinstance(first, int) and isinstance(stride, int) and first >= 0 and stride > 0:
            self._rank = first + rank * stride
        elif group is not None:
            ranks = group.ranks or range(group.group_size)
            self._rank = ranks[rank] if rank < len(ranks) else -1
        self.world_size = max(self.world_size, size)


def _arguments(node: Node) -> _Arguments | None:
    """Find the arguments by the one that is a string: the name of the collective."""
    values = _values(node.inputs)
    types = node.inputs.types if isinstance(node.inputs, _Values) else node.input_types
    place = next((i for i, kind in enumerate(types) if kind == "String"), 0)
    if place < 3 or len(values) < place + 3 or not isinstance(values[place], str):
        return None
    splits, behind = values[place + 1 : place + 3], values[place + 3 : place + 6]
    size = behind[-1] if behind else max(len(s) if isinstance(s, list) else 0 for s in splits)
    first, stride = behind[:2] if len(behind) == 3 else (None, None)
    return _Arguments(values[place], values[place - 2], values[place - 1], first, stride, size)


def _names_caller(op: str) -> bool:
    return op.replace("_", "").lower().startswith(_OF_ALL)


def _values(side: _Values | list[Any]) -> list[Any]:
    return side.values if isinstance(side, _Values) else side


def _tensors(value: Any) -> Iterator[list[Any]]:
    """Yield the tensors in nested lists of them, in no order."""
    rest = [value]  # a file may nest deeper than Python calls
    while rest:
        one = rest.pop()
        if isinstance(one, list):
            if len(one) == _NAMED_TENSOR and isinstance(one[5], str):
                yield one
            else:
                rest += one


def _sums(values: list[Any]) -> tuple[int, int]:
    """Return elements and bytes of all tensors in `values`."""
    tensors = [(_number(tensor[3]), _number(tensor[4])) for tensor in _tensors(values)]
    elements = sum(count for count, _ in tensors)
    nbytes = sum(count * width for count, width in tensors)
    return min(elements, 2**60), min(nbytes, 2**60)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0
