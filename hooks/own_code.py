"""The code of dsprof itself, for what has to tell it from the user's."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import cast


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
    if isinstance(member, FunctionType):
        # What makes a context manager is code of contextlib, which all share.
        function = cast(FunctionType, inspect.unwrap(member))
        if function.__globals__["__name__"].startswith("dsprof."):
            yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
