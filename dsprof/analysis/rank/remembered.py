"""Caches the facts of a trace that many aggregates need, while a rank is summarised."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from dsprof.trace.rank_trace import Collectives, RankTrace

A = TypeVar("A", RankTrace, Collectives)
T = TypeVar("T")

_found: ContextVar[tuple[RankTrace, dict[Callable[..., Any], Any]] | None] = ContextVar(
    "found", default=None
)


@contextmanager
def unchanging(trace: RankTrace) -> Iterator[None]:
    """Promise that a trace does not change meanwhile: what is `remembered` is found once."""
    token = _found.set((trace, {}))
    try:
        yield
    finally:
        _found.reset(token)


def remembered(find: Callable[[A], T]) -> Callable[[A], T]:
    """Have a function of a trace, or of its collectives, remember its result.

    The result must not be written to.
    """

    @wraps(find)
    def known(of: A) -> T:
        held = _found.get()
        if held is None or not any(of is one for one in (held[0], held[0].collectives)):
            return find(of)
        if find not in held[1]:
            held[1][find] = find(of)
        result: T = held[1][find]
        return result

    return known
