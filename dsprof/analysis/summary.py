"""RunSummary: what is known of a run, collected rank by rank and then merged.

An aggregate is a small value with `collect` (from one rank's trace) and a `merge` that takes ranks
in any order, so 8 or 8,000 take the same path, here or on a cluster. A rule reads nothing else.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from operator import add
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np

from dsprof.analysis.per_rank import PerRank
from dsprof.plugins.entry_points import reason
from dsprof.trace.columns import IntArray
from dsprof.trace.rank_trace import RankTrace


@dataclass(frozen=True, slots=True)
class RankClock:
    """How a rank's trace times map to the time line of the run.

    `run_ns = trace_ns + offset_ns`, and where two clocks drift apart what `drift` says: pairs of a
    trace time and of what is added then, ascending, with straight lines between them. The error is
    at most `bound_ns`: 0 on the host and boot of the reference, None where it is not known.
    """

    offset_ns: int = 0
    bound_ns: int | None = 0
    drift: tuple[tuple[int, int], ...] = ()

    def on_run(self, trace_ns: IntArray) -> IntArray:
        """Return times of the trace on the time line of the run."""
        shifted: IntArray = trace_ns.astype(np.int64) + self.offset_ns
        if not self.drift:
            return shifted
        at, added = zip(*self.drift, strict=True)
        shifted += np.rint(np.interp(trace_ns, at, added)).astype(np.int64)
        return shifted


A = TypeVar("A", bound="Aggregate")
R = TypeVar("R")
S = TypeVar("S")
C = TypeVar("C", bound=Any)
T = TypeVar("T", bound="Sums")


def joined_by(join: Callable[[Any, Any], Any]) -> Mapping[str, Any]:
    """Return the `metadata` of a field that is not added up but joined by a function."""
    return {"join": join}


class Sums:
    """A frozen dataclass of sums, which are added field by field, or as `joined_by` says."""

    __slots__ = ()

    def __add__(self: T, other: T) -> T:
        return _joined_fields(self, other)


class Aggregate(ABC):
    """One kind of fact about a run: a frozen dataclass in a file of its own in `aggregates/`."""

    @classmethod
    @abstractmethod
    def collect(cls: type[A], trace: RankTrace, clock: RankClock) -> A:
        """Read the fact from one rank's trace."""

    def merge(self: A, other: A) -> A:
        """Join the facts of two disjoint sets of ranks, in any order.

        Rows and numbers are added up, or joined as the field says; where that does not do, an
        aggregate has a method of its own.
        """
        return _joined_fields(self, other)


def summed(pairs: Iterable[tuple[R, S]], to: Mapping[R, S] = MappingProxyType({})) -> dict[R, S]:
    """Add up the sums of each kind."""
    rows = dict(to)
    for kind, sums in pairs:
        rows[kind] = _joined(rows[kind], sums) if kind in rows else sums
    return rows


def add_rows(one: Mapping[R, S], other: Mapping[R, S]) -> dict[R, S]:
    """Join rows of sums, adding up those of the same kind."""
    return summed(other.items(), one)


def greatest(one: Mapping[R, C], other: Mapping[R, C]) -> dict[R, C]:
    """Join what ranks say of the same things, where one may know more: the greater value stays."""
    rows = dict(one)
    for key, value in other.items():
        rows[key] = max(rows[key], value) if key in rows else value
    return rows


def _joined_fields(one: R, other: R) -> R:
    kind: Any = type(one)
    joined = [join(getattr(one, name), getattr(other, name)) for name, join in _joins(kind)]
    return cast(R, kind(*joined))


@cache
def _joins(kind: Any) -> tuple[tuple[str, Callable[[Any, Any], Any]], ...]:
    """Return the fields of a dataclass, and how each is joined."""
    # Most are numbers: to ask each for its type takes longer than to add them.
    usual = {one.name: add if one.type == "int" else _joined for one in fields(kind)}
    how = {one.name: one.metadata.get("join", usual[one.name]) for one in fields(kind)}
    return tuple((name, how[name]) for name in kind.__match_args__)


def _joined(one: Any, other: Any) -> Any:
    """Add up two values; None where a part is not known."""
    if one is None or other is None:
        return None
    if type(one) is dict:
        return add_rows(one, other)
    return one | other if isinstance(one, PerRank) else one + other


def _smaller(one: Any, other: Any) -> Any:
    return None if one is None or other is None else min(one, other)


LARGEST = joined_by(max)
"""Metadata of a field of which the larger value stays."""
SMALLEST = joined_by(_smaller)
"""Metadata of a field of which the smaller value stays; None where one is not known."""


def _in_order(value: Any) -> Any:
    """Return the same value where it is in order: a copy of all ranks takes much memory."""
    if isinstance(value, PerRank):
        return value.in_order()
    if isinstance(value, dict):
        rows = {key: _in_order(value[key]) for key in _ordered(value)}
        is_same = all(one is value[key] for key, one in rows.items()) and [*rows] == [*value]
        return value if is_same else Counter(rows) if isinstance(value, Counter) else rows
    if not is_dataclass(value) or isinstance(value, type):
        return value
    found = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
    ordered = {name: _in_order(part) for name, part in found.items()}
    changed = {name: part for name, part in ordered.items() if part is not found[name]}
    return replace(value, **changed) if changed else value


def _ordered(keys: Iterable[Any]) -> list[Any]:
    try:
        return sorted(keys)
    except TypeError:  # of several types, such as None
        return sorted(keys, key=repr)


class RunSummary:
    """The aggregates of a run, by their type: `summary[Communication].rows`.

    `failures` says of an aggregate of a plugin why it is not there.
    """

    def __init__(
        self,
        parts: Iterable[Aggregate],
        failures: Mapping[type[Aggregate], str] = MappingProxyType({}),
    ) -> None:
        self._parts: dict[type[Aggregate], Aggregate] = {type(part): part for part in parts}
        self.failures = dict(failures)

    def __getitem__(self, kind: type[A]) -> A:
        return cast(A, self._parts[kind])

    def __contains__(self, kind: type[Aggregate]) -> bool:
        return kind in self._parts

    def merge(self, other: RunSummary) -> RunSummary:
        """Join two summaries that hold the same kinds of aggregates."""
        failures = greatest(self.failures, other.failures)
        parts = (
            _guarded(kind, partial(part.merge, other[kind]), failures)
            for kind, part in self._parts.items()
            if kind not in failures
        )
        return RunSummary([part for part in parts if part is not None], failures)

    def in_order(self) -> RunSummary:
        """Return the same with rows in the order of their keys, not in that of the merges."""
        return RunSummary(map(_in_order, self._parts.values()), self.failures)

    def with_part(self, part: Aggregate) -> RunSummary:
        """Return a summary with the aggregate of this type replaced."""
        return RunSummary((self._parts | {type(part): part}).values(), self.failures)

    def only(self, kinds: Iterable[type[Aggregate]]) -> RunSummary:
        """Return a summary of only the named aggregates, so that a rule sees what it declared."""
        return RunSummary(self._parts[kind] for kind in kinds if kind in self._parts)


def collected(trace: RankTrace, clock: RankClock, kinds: Iterable[type[Aggregate]]) -> RunSummary:
    """Collect aggregates of one rank; one of a plugin may fail, and is then in `failures`."""
    failures: dict[type[Aggregate], str] = {}
    parts = [_guarded(kind, partial(kind.collect, trace, clock), failures) for kind in kinds]
    return RunSummary([part for part in parts if part is not None], failures)


def _guarded(
    kind: type[Aggregate],
    make: Callable[[], Aggregate],
    failures: dict[type[Aggregate], str],
) -> Aggregate | None:
    """Make an aggregate; what a plugin's own raises, or makes instead, is kept as a failure."""
    if kind.__module__.partition(".")[0] == "dsprof":
        return make()
    try:
        part = make()
        if type(part) is not kind:
            raise TypeError(f"it gave a {type(part).__name__}")
        # As between processes, which read larger runs.
        pickle.loads(pickle.dumps(part))  # noqa: S301
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - code of others: a panic of Rust is no Exception
        failures[kind] = reason(error)
        return None
    return part
