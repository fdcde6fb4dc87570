"""Operations and bytes of two runs, compared exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from dsprof.analysis.collectives import SIZE_NOT_KNOWN
from dsprof.analysis.rank.blocked_time import added
from dsprof.diagnosis.comparison.model import KindChange, OperationChange
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.communication import CommunicationRow
from dsprof.diagnosis.per_step import bytes_of, rank_steps
from dsprof.findings.wording import duration
from dsprof.trace.collectives import family

Key = TypeVar("Key")


class Kind(NamedTuple):
    """Collectives of one row have this in common."""

    op: str
    group: str
    group_size: int | None
    phase: str
    size_class: str
    dtype: str
    is_async: bool
    on_wire: bool


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the `rank_steps` of a run: the measured steps of all its ranks."""

    rank_steps: int
    calls: int = 0
    nbytes: int | None = 0  # None: the sizes of some are not known
    exposed_ns: int | None = None
    busbw: float | None = None  # only of single rows: speeds cannot be added

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.rank_steps,
            self.calls + other.calls,
            added(self.nbytes, other.nbytes),
            added(self.exposed_ns, other.exposed_ns),
        )

    def equals(self, other: Sums) -> bool:
        """Whether calls and known bytes of a rank's step are the same, without rounding.

        Both runs may add the same few, such as a barrier after the last step.
        """
        mine, theirs = self.rank_steps, other.rank_steps
        pairs = [(self.calls, other.calls)]
        if self.nbytes is not None and other.nbytes is not None:
            pairs.append((self.nbytes, other.nbytes))
        return all(
            old * theirs == new * mine or divmod(old, mine) == divmod(new, theirs)
            for old, new in pairs
        )

    def per_step(self, total: float | None) -> float | None:
        """Turn a sum into the mean of one rank's step."""
        return None if total is None else total / self.rank_steps


def why_not_compared(before: Diagnosis, after: Diagnosis) -> str:
    """Say why operations and bytes of two runs do not compare; "" if they do."""
    sides = {"before": before, "after": after}
    stepless = [name for name, made in sides.items() if not made.steps.measured_steps]
    if len(stepless) == 1:
        return f"no step was measured {stepless[0]}"
    for name, made in sides.items():
        if newest_ns := made.history.newest_ns:
            return f"only records of the last {duration(newest_ns)} are kept {name}"
    silent = [name for name, made in sides.items() if not made.communication]
    if len(silent) == 1 and not sides[silent[0]].quality.is_recorded:
        return f"the files of other tools {silent[0]} hold no collective"
    return ""


def _spelling(*runs: Diagnosis) -> Callable[[str], str]:
    """Return how operations are called: dsprof and other tools spell the same one differently."""
    return str if all(run.quality.is_recorded for run in runs) else family


def operation_changes(before: Diagnosis, after: Diagnosis) -> list[OperationChange]:
    """Compare operation by operation, those with the most bytes first."""
    name = _spelling(before, after)
    found = [
        OperationChange(op=op, **_numbers(old, new))
        for op, old, new in _pairs(before, after, lambda row, _: name(row.op))
    ]
    return sorted(found, key=_weight)


def kind_changes(before: Diagnosis, after: Diagnosis) -> list[KindChange]:
    """Compare kind by kind: what changed first, then by bytes.

    Of a run that dsprof recorded and one that it did not, the kinds are described differently.
    """
    if before.quality.is_recorded != after.quality.is_recorded:
        return []
    found = [
        (
            kind,
            KindChange(
                **kind._asdict(),
                **_numbers(old, new),
                before_busbw=old.busbw,
                after_busbw=new.busbw,
            ),
        )
        for kind, old, new in _pairs(before, after, _kinds(before, after))
    ]
    found.sort(key=lambda one: (not one[1].is_changed, _weight(one[1]), [*map(str, one[0])]))
    return [change for _, change in found]


def _kinds(*runs: Diagnosis) -> Callable[[CommunicationRow, int | None], Kind]:
    """Return the kind of a row, without what is not known of all rows of its operation."""
    name = _spelling(*runs)
    rows = [row for run in runs for row in run.communication]
    unsized = {name(row.op) for row in rows if row.size_class == SIZE_NOT_KNOWN}
    untyped = {name(row.op) for row in rows if not row.dtype}
    ungrouped = {name(row.op) for row in rows if row.group == "unknown"}

    def kind(row: CommunicationRow, world_size: int | None) -> Kind:
        found = _kind(row, world_size)._replace(op=(op := name(row.op)))
        if op in unsized:
            found = found._replace(size_class=SIZE_NOT_KNOWN)
        if op in untyped:
            found = found._replace(dtype="")
        return found._replace(group="unknown", group_size=None) if op in ungrouped else found

    return kind


def _kind(row: CommunicationRow, world_size: int | None) -> Kind:
    # A group is known by its members or its purpose: its name may be a process's own.
    is_whole = row.group_size is not None and row.group_size == world_size
    return Kind(
        row.op,
        "all ranks" if is_whole else row.role or row.group,
        row.group_size,
        row.phase,
        row.size_class,
        row.dtype,
        row.is_async,
        row.on_wire,
    )


def _pairs(
    before: Diagnosis, after: Diagnosis, key: Callable[[CommunicationRow, int | None], Key]
) -> Iterator[tuple[Key, Sums, Sums]]:
    """Yield what either run has under a key; a run without it has none of it."""
    old, new = _grouped(before, key), _grouped(after, key)
    for one in {**old, **new}:
        first = old.get(one, Sums(rank_steps(before)))
        yield one, first, new.get(one, Sums(rank_steps(after)))


def _grouped(
    diagnosis: Diagnosis, key: Callable[[CommunicationRow, int | None], Key]
) -> dict[Key, Sums]:
    found: dict[Key, Sums] = {}
    steps = rank_steps(diagnosis)
    for row in diagnosis.communication:
        sums = Sums(steps, row.calls, bytes_of([row]), row.exposed_ns, row.busbw)
        name = key(row, diagnosis.run.world_size)
        found[name] = found[name] + sums if name in found else sums
    return found


def _numbers(old: Sums, new: Sums) -> dict[str, Any]:
    return {
        "before_calls": old.per_step(old.calls),
        "after_calls": new.per_step(new.calls),
        "before_bytes": old.per_step(old.nbytes),
        "after_bytes": new.per_step(new.nbytes),
        "is_changed": not old.equals(new),
        "before_exposed_ns": old.per_step(old.exposed_ns),
        "after_exposed_ns": new.per_step(new.exposed_ns),
    }


def _weight(change: OperationChange) -> tuple[float, str]:
    return -max(change.before_bytes or 0, change.after_bytes or 0), change.op
