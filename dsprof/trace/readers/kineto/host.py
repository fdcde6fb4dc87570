"""Collectives as the host saw them: torch's own record of each call, and spans of CPU backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Annotated

import msgspec

from dsprof.trace.readers.calls import Call, message
from dsprof.trace.readers.kineto.events import Args
from dsprof.trace.schema import Group

ISSUED = "record_param_comms"
"""What torch records of each call of NCCL's process group, from recent releases on with sizes."""

_Shape = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]], msgspec.Meta(max_length=64)
]
_NO_COLLECTIVES = ("wait", "init")  # that torch records by the same name
_MOST_ELEMENTS = 2**58
_TYPES = {"long int": "long", "unsigned char": "byte", "signed char": "char"}


def is_issue(args: Args) -> bool:
    """Say whether a record of a call tells of a collective, by which kernels can find it."""
    is_collective = args.collective is not None and args.collective not in _NO_COLLECTIVES
    return is_collective and isinstance(args.external, int)


class Issues:
    """The calls of one rank by their number, and kernels that do not say what they are."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._unnamed: dict[int, int] = {}  # place of a kernel's call -> number of the host's

    @property
    def calls(self) -> list[Call]:
        """What was issued; when that ended is not known."""
        return [call._replace(end_ns=0) for call in self._calls.values()]

    def add(self, args: Args, call: Call) -> None:
        """Keep a call that the host made."""
        if isinstance(args.external, int):
            self._calls[args.external] = call

    def leave(self, args: Args, place: int) -> None:
        """Remember a kernel without metadata by the place of its call among those of the device."""
        if isinstance(args.external, int):
            self._unnamed[place] = args.external

    def name(self, calls: list[Call]) -> None:
        """Give kernels without metadata what the host said of the call that launched them.

        A call that launched several stays apart: its size is that of all of them together.
        """
        launched = Counter(self._unnamed.values())
        for place, number in self._unnamed.items():
            if launched[number] == 1 and (issue := self._calls.get(number)) is not None:
                kernel = calls[place]
                lane, start, end = kernel.lane, kernel.start_ns, kernel.end_ns
                calls[place] = issue._replace(lane=lane, start_ns=start, end_ns=end)


def span_message(args: Args) -> tuple[int, str]:
    """Return elements and dtype of the tensors given to a span of a CPU backend; 0 if not told.

    Torch writes them where shapes are recorded.
    """
    try:
        shapes = msgspec.json.decode(args.shapes, type=list[_Shape])
        types = msgspec.json.decode(args.types, type=list[str])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0, ""
    if len(set(types)) != 1:
        return 0, ""
    elements = sum(map(prod, shapes))
    dtype = types[0].removeprefix("c10::")
    return (elements, _TYPES.get(dtype, dtype)) if elements <= _MOST_ELEMENTS else (0, "")


def in_only_group(call: Call, groups: Mapping[int, Group]) -> Call:
    """Return a span of a CPU backend with its group where the process has but one, and its size.

    Such a span names no group, and of a gather it tells the share of one rank alone.
    """
    known = [group for group in groups.values() if group.name]
    only = known[0] if len(known) == 1 else None
    given = call.elements * only.size if only is not None else 0
    elements, nbytes = message(call.op, call.elements, given, call.dtype)
    group = only.id if only is not None else call.group
    return call._replace(group=group, elements=elements, nbytes=nbytes)
