"""Purposes of communication: gradients, parameters, or something else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from dsprof.analysis.rank.engine_owners import NO_ENGINE, Part, owners, parts
from dsprof.analysis.rank.group_by import group_rows
from dsprof.analysis.rank.intervals import Array, blocked, unseen, without_size
from dsprof.analysis.rank.record_columns import span_columns
from dsprof.analysis.rank.steps import (
    backwards_again,
    counted_steps,
    in_steps,
    is_timed,
    measured_steps,
    micro_steps_of,
    taken_micro_steps,
)
from dsprof.analysis.summary import Aggregate, RankClock, Sums, summed
from dsprof.trace.collectives import REDUCTIONS, family
from dsprof.trace.columns import BoolArray
from dsprof.trace.rank_trace import RankTrace

Purpose = Literal["other", "gradients", "parameters", "not known"]
PURPOSES: tuple[Purpose, ...] = ("other", "gradients", "parameters", "not known")
_OTHER, _GRADIENTS, _PARAMETERS, _NOT_KNOWN = range(4)

SCALAR_BYTES = 4096
"""Norms, losses and overflow flags are smaller, gradients of a layer are not."""


class Use(NamedTuple):
    """The use of a collective."""

    purpose: Purpose
    family: str  # all_reduce, whatever the spelling of the op
    group_size: int
    engine: int = -1  # of DeepSpeed, where there are several, in whole steps that it took


@dataclass(frozen=True, slots=True)
class Volume(Sums):
    """Sums over ranks and measured steps."""

    calls: int
    nbytes: int
    exposed_ns: int
    unsized: int = 0  # calls of which it is not known how much they sent
    untimed: int = 0  # calls of which it is not known how long they held a rank


@dataclass(frozen=True, slots=True)
class Turns(Sums):
    """Traffic of one of several engines in measured steps, summed over ranks."""

    steps: int
    micro_steps: int
    reducing_micro_steps: int


@dataclass(frozen=True, slots=True)
class Traffic(Aggregate):
    """Volumes by use; that of collectives in counters is not known."""

    uses: dict[Use, Volume]
    rank_steps: int
    micro_steps: int  # of measured steps, summed over ranks
    reducing_micro_steps: int  # those in which gradients were reduced
    turns: dict[int, Turns]  # by engine, where there are several and it is known who took steps
    backwards_again: int = 0  # of closures, after their first one; of all engines together

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Traffic:
        rows, steps = trace.collectives, measured_steps(trace)
        mine = in_steps(rows.step, steps) & rows.on_wire
        purpose = purposes(trace)
        wanted = set(steps.tolist())
        found = list(parts(trace, steps))
        uses = _volumes(trace, np.flatnonzero(mine), purpose, owners(trace, found))
        reducing = mine & (purpose == _GRADIENTS)
        return cls(
            uses=summed(_counted(trace, wanted), uses),
            rank_steps=len(steps),
            micro_steps=taken_micro_steps(trace, steps),
            reducing_micro_steps=micro_steps_of(rows, np.flatnonzero(reducing)),
            turns=_turns(trace, found, reducing),
            backwards_again=backwards_again(trace, steps),
        )

    def of(self, purpose: Purpose) -> dict[Use, Volume]:
        """Return the uses of one purpose."""
        return {use: volume for use, volume in self.uses.items() if use.purpose == purpose}

    def of_engine(self, engine: int) -> Traffic:
        """Return the volumes of one of several engines, a step being one that it took.

        Of an engine that takes none (a reference model) they are per step of the others.
        """
        uses = {use: volume for use, volume in self.uses.items() if use.engine == engine}
        mine = self.turns.get(engine, Turns(0, 0, 0))
        steps, reducing = mine.steps or self.rank_steps, mine.reducing_micro_steps
        return Traffic(uses, steps, mine.micro_steps, reducing, {})

    @property
    def reductions_per_step(self) -> float:
        """In how many backwards of a step gradients were reduced; at least one."""
        return max(1.0, self.reducing_micro_steps / max(self.rank_steps, 1))

    def per_step(self, total: float) -> float:
        """Return a sum over ranks and steps as the mean of one rank and step."""
        return total / self.rank_steps if self.rank_steps else 0.0


def purposes(trace: RankTrace) -> Array:
    """Return what each collective was for, as an index into `PURPOSES`."""
    rows = trace.collectives
    purpose = np.where(rows.fetch > 0, _PARAMETERS, _OTHER)
    purpose[_gradients(trace)] = _GRADIENTS
    purpose[in_steps(rows.step, counted_steps(trace))] = _NOT_KNOWN
    return purpose


def _gradients(trace: RankTrace) -> BoolArray:
    """Say which collectives reduced gradients.

    Those of a bucket flush did. Where no library said so, reductions outside forward and step did,
    else those in the step, unless they are scalars or their group also reduces in forward, as
    tensor parallelism does.
    """
    rows = trace.collectives
    flushed = rows.flush > 0
    if flushed.any():
        return np.asarray(flushed, np.bool_)
    reduces = rows.of_families(REDUCTIONS) & (rows.nbytes >= SCALAR_BYTES)
    forward = rows.phase == rows.code("forward")
    busy_forward = np.unique(rows.group[reduces & forward])
    if not (forward.any() or span_columns(trace).named("forward").any()):
        forward = _before_backward(trace)
        # Between step and backward a loop may also average parameters, by the group of gradients.
        in_backward = rows.phase == rows.code("backward")
        busy_forward = np.intersect1d(rows.group[reduces & forward], rows.group[in_backward])
    found = reduces & ~forward & ~np.isin(rows.group, busy_forward)
    before_step = found & (rows.phase != rows.code("step"))
    # An optimizer that shards its states by hand reduces gradients itself.
    reduces_in_step = not (before_step.any() or trace.engines)
    return np.asarray(found if reduces_in_step else before_step, np.bool_)


def _before_backward(trace: RankTrace) -> BoolArray:
    """Say what was issued before the first backward of its step: where a plain loop has forward."""
    rows, spans = trace.collectives, span_columns(trace)
    is_backward = spans.named("backward") & ~spans.is_annotation
    steps, place = np.unique(spans.step[is_backward], return_inverse=True)
    if not len(steps):
        return np.zeros(len(rows), np.bool_)
    first = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(first, place, spans.start_ns[is_backward])
    at = np.searchsorted(steps, rows.step).clip(max=len(steps) - 1)
    return np.asarray((steps[at] == rows.step) & (rows.issue_ns < first[at]), np.bool_)


def _volumes(trace: RankTrace, chosen: Array, purpose: Array, owner: Array) -> dict[Use, Volume]:
    rows = trace.collectives
    if not len(chosen):
        return {}
    groups = group_rows([purpose[chosen], rows.op[chosen], rows.group[chosen], owner[chosen]])
    start, end = blocked(rows)
    calls, nbytes = groups.counts(), groups.sums(rows.nbytes[chosen])
    exposed = groups.sums((end - start)[chosen])
    unsized = groups.sums(without_size(rows)[chosen])
    untimed = groups.sums(unseen(rows)[chosen]) if is_timed(trace) else calls
    columns = calls, nbytes, exposed, unsized, untimed
    uses = (
        _use(trace, PURPOSES[purpose[i]], rows.words[rows.op[i]], int(rows.group[i]), int(owner[i]))
        for i in chosen[groups.first]
    )
    volumes = (Volume(*map(int, sums)) for sums in zip(*columns, strict=True))
    return summed(zip(uses, volumes, strict=True))


def _counted(trace: RankTrace, wanted: set[int]) -> Iterator[tuple[Use, Volume]]:
    for counters in trace.counters:
        if counters.step in wanted:
            for row in counters.rows:
                if row.on_wire:
                    use = _use(trace, "not known", row.op, row.group)
                    yield use, Volume(row.calls, row.nbytes, row.blocked_ns)


def _use(
    trace: RankTrace, purpose: Purpose, op: str, group_id: int, engine: int = NO_ENGINE
) -> Use:
    group = trace.groups.get(group_id)
    return Use(purpose, family(op), group.size if group is not None else 0, engine)


def _turns(trace: RankTrace, found: Iterable[Part], reducing: BoolArray) -> dict[int, Turns]:
    done = {}
    for part in found:
        if part.takers and part.trains:
            done[part.number] = Turns(
                len(part.steps),
                taken_micro_steps(trace, part.steps),
                micro_steps_of(trace.collectives, np.flatnonzero(reducing & part.rows(trace))),
            )
    return done
