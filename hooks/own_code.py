"""The code of dsprof itself, for what must distinguish it from the user's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType


def own_codes() -> Iterator[CodeType]:
    """Yield the code of each function of dsprof that is imported, with what is defined inside."""
    for name, module in list(sys.modules.items()):
        if name.startswith("dsprof."):
            for value in list(vars(module).values()):
                for member in vars(value).values() if isinstance(value, type) else (value,):
                    yield from _codes(member)


def _codes(member: object) -> Iterator[CodeType]:
    if isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    elif isinstance(member, property):
        member = member.fget
    while isinstance(member, FunctionType):
        # What makes a context manager is code of contextlib, which all share.
        if member.__globals__.get("__name__", "").startswith("dsprof."):
            yield from _with_inner(member.__code__)
        member = vars(member).get("__wrapped__")


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
