"""Requested and sent traffic, side by side: sums over ranks and measured steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from operator import or_
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.traffic import SCALAR_BYTES
from dsprof.analysis.rank.engine_owners import Part, parts
from dsprof.analysis.rank.group_by import group_rows
from dsprof.analysis.rank.intent import (
    Course,
    Demand,
    Expected,
    Kind,
    demands_of_forwards,
    demands_of_zero,
    obstacle,
)
from dsprof.analysis.rank.intent_torch import Sharing, demands_of_ddp, demands_of_fsdp
from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.rank.record_columns import span_columns
from dsprof.analysis.rank.steps import detailed_steps, micro_steps_of, taken_micro_steps
from dsprof.analysis.summary import LARGEST, Aggregate, RankClock, Sums, joined_by
from dsprof.trace.collectives import family
from dsprof.trace.columns import BoolArray
from dsprof.trace.rank_trace import Collectives, RankTrace
from dsprof.trace.schema import EngineConfig

_KINDS: tuple[Kind, ...] = ("other", "small", "update", "parameters", "gradients")
_OTHER, _SMALL, _UPDATE, _PARAMETERS, _GRADIENTS = range(5)


class Sent(NamedTuple):
    """Collectives of one row have this in common."""

    kind: Kind
    family: str
    dtype: str
    role: str  # of the group, "" if it has none
    by_library: bool  # asked for by deepspeed.comm or another library above c10d
    phase: str  # of traffic that is neither gradients nor parameters
    site: str  # of one of them, of the same


@dataclass(frozen=True, slots=True)
class Amount(Sums):
    """Sums."""

    calls: int
    nbytes: int
    elements: int


@dataclass(frozen=True, slots=True)
class Progress(Sums):
    """Work of the measured steps, summed over ranks."""

    steps: int
    micro_steps: int = 0
    reducing_micro_steps: int = 0
    forwards: int = 0
    flushes: int = 0
    flushed_elements: int = 0
    recomputing_ranks: int = 0


@dataclass(frozen=True, slots=True)
class Account(Sums):
    """Both sides; `obstacle` is the feature whose traffic is not modelled, "" if there is none."""

    demands: dict[Demand, Expected]
    sent: dict[Sent, Amount]
    progress: Progress
    obstacle: str = field(default="", metadata=LARGEST)
    # False: an engine that took no step, as a reference model in RLHF
    trains: bool = field(default=True, metadata=joined_by(or_))


@dataclass(frozen=True, slots=True)
class Intent(Aggregate):
    """An account of each engine that had phases, by its number; -1 where there is no engine."""

    accounts: dict[int, Account]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Intent:
        """Model what the configuration of one rank asks for, and add up what it sent."""
        found = parts(trace, detailed_steps(trace))
        return cls({part.number: _account(trace, part) for part in found})


def _account(trace: RankTrace, part: Part) -> Account:
    rows = np.flatnonzero(part.rows(trace) & trace.collectives.on_wire)
    kinds = _kinds(trace.collectives, bool(trace.engines))[rows]
    progress = _progress(trace, part, rows[kinds == _GRADIENTS])
    engine, hidden = trace.engines.get(part.number), ""
    if engine is not None:
        hidden = obstacle(engine)
    elif trace.engines:
        hidden = "one of several engines, of which it is not known who took a step"
    elif progress.reducing_micro_steps < progress.steps:
        # PowerSGD sends factors of the gradients, local SGD averages parameters at times
        hidden = next((f"{one.comm_hook} of DDP" for one in trace.layouts if one.comm_hook), "")
    demands = {} if hidden else _demands(trace, engine, progress, rows, kinds, trains=part.trains)
    return Account(demands, _sent(trace, rows, kinds), progress, hidden, part.trains)


def _demands(
    trace: RankTrace,
    engine: EngineConfig | None,
    progress: Progress,
    rows: Array,
    kinds: Array,
    *,
    trains: bool,
) -> dict[Demand, Expected]:
    """Model what an engine asks for, or DDP and FSDP where there is none."""
    gradients, parameters = rows[kinds == _GRADIENTS], rows[kinds == _PARAMETERS]
    if engine is not None:
        used = gradients if trains else parameters
        groups = np.unique(trace.collectives.group[used])
        ranks = max((_size(trace, int(group)) for group in groups), default=0)
        if not trains:
            return dict(demands_of_forwards(engine, progress.forwards, ranks))
        course = Course(progress.steps, progress.flushes, ranks, len(groups))
        return dict(demands_of_zero(engine, course))
    scattered = gradients[trace.collectives.of_families({"reduce_scatter"})[gradients]]
    shards = [_size(trace, int(group)) for group in np.unique(trace.collectives.group[scattered])]
    summed = gradients[_is_among_replicas(trace.collectives)[gradients]]
    sharing = Sharing(
        reductions=progress.reducing_micro_steps,
        micro_steps=progress.micro_steps,
        ranks=max(shards, default=0),
        replica_reductions=micro_steps_of(trace.collectives, summed) if len(scattered) else 0,
        gradient_bytes=_item_bytes(trace.collectives, gradients),
        parameter_bytes=_item_bytes(trace.collectives, parameters),
    )
    demands = demands_of_fsdp(trace.flushes, trace.fetches, sharing)
    return dict(chain(demands_of_ddp(trace.layouts, progress.reducing_micro_steps), demands))


def _is_among_replicas(rows: Collectives) -> BoolArray:
    """Say where FSDP all-reduces shards; DTensor does it for tensor parallelism, by its name."""
    return np.asarray(rows.of_families({"all_reduce"}) & (rows.requested == rows.code("")))


def _item_bytes(rows: Collectives, chosen: Array) -> float:
    elements = int(rows.elements[chosen].sum())
    return int(rows.nbytes[chosen].sum()) / elements if elements else 0.0


def _size(trace: RankTrace, group: int) -> int:
    return trace.groups[group].size if group in trace.groups else 0


def _kinds(rows: Collectives, has_engine: bool) -> Array:
    """Return what each collective was for, as an index into `_KINDS`."""
    kinds = np.where(rows.nbytes < SCALAR_BYTES, _SMALL, _OTHER)
    if has_engine:
        kinds[_gathers_of_steps(rows)] = _UPDATE
    kinds[(rows.fetch > 0) & _in_use(rows, has_engine)] = _PARAMETERS
    kinds[rows.flush > 0] = _GRADIENTS
    return kinds


def _in_use(rows: Collectives, has_engine: bool) -> BoolArray:
    """Say what was issued in a pass through a model; an engine generates outside of them."""
    phases = [rows.code("forward"), rows.code("backward")]
    return np.isin(rows.phase, phases) if has_engine else np.ones(len(rows), np.bool_)


def _gathers_of_steps(rows: Collectives) -> BoolArray:
    """Say which are all-gathers that a library asked for in an optimizer step."""
    in_step = (rows.phase == rows.code("step")) & (rows.requested != rows.code(""))
    return np.asarray(in_step & rows.of_families({"all_gather"}), np.bool_)


def _progress(trace: RankTrace, part: Part, gradients: Array) -> Progress:
    rows, spans = trace.collectives, span_columns(trace)
    flushes = [flush for flush in trace.flushes if flush.elements and part.holds(flush)]
    is_forward = spans.named("forward") & part.holding(spans.step, spans.engine)
    forwards = int(np.count_nonzero(is_forward))
    micro_steps = taken_micro_steps(trace, part.steps)
    return Progress(
        steps=len(part.steps),
        micro_steps=micro_steps if part.trains else forwards,
        reducing_micro_steps=micro_steps_of(rows, gradients),
        forwards=forwards,
        flushes=len(flushes),
        flushed_elements=sum(flush.elements for flush in flushes),
        recomputing_ranks=int(any(f.is_recomputation for f in trace.fetches if part.holds(f))),
    )


def _sent(trace: RankTrace, chosen: Array, kinds: Array) -> dict[Sent, Amount]:
    rows = trace.collectives
    by_library = rows.requested[chosen] != rows.code("")
    is_other = kinds == _OTHER
    site = np.where(is_other, rows.site[chosen], 0)
    phase = np.where(is_other, rows.phase[chosen], -1)
    columns = [kinds, rows.op[chosen], rows.dtype[chosen], rows.group[chosen], by_library]
    groups = group_rows([*columns, site, phase])
    sums = (groups.counts(), groups.sums(rows.nbytes[chosen]), groups.sums(rows.elements[chosen]))
    sent: dict[Sent, Amount] = {}
    for place, *amounts in zip(groups.first, *(column.tolist() for column in sums), strict=True):
        row = chosen[place]
        group = trace.groups.get(int(rows.group[row]))
        key = Sent(
            _KINDS[kinds[place]],
            family(rows.words[rows.op[row]]),
            rows.words[rows.dtype[row]],
            group.role if group is not None else "",
            bool(by_library[place]),
            rows.words[phase[place]] if phase[place] >= 0 else "",
            _site(trace, int(site[place])),
        )
        sent[key] = sent.get(key, Amount(0, 0, 0)) + Amount(*amounts)
    return sent


def _site(trace: RankTrace, number: int) -> str:
    site = trace.sites.get(number)
    return f"{site.file}:{site.line}" if site is not None else ""
