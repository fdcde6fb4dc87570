"""Single calls as evidence, and the saving if they are omitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.communication import Kind, Row
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.collectives import SIZE_NOT_KNOWN
from dsprof.analysis.rank.blocked_time import BlockedTime
from dsprof.analysis.run.omitted_calls import Sized, saved_ns
from dsprof.analysis.summary import RunSummary
from dsprof.findings import frames
from dsprof.findings.finding import Column, Table
from dsprof.trace.collectives import family

Calls = Mapping[Kind, Row]
AnyCalls = Mapping[Any, Row | BlockedTime]

_ROWS = 8
_STANDARD = "python"  # its library calls what a program hands over, e.g. to a pool of threads


class Caller(NamedTuple):
    """A library that communicates by itself in the training loop."""

    library: str
    site: str  # file and line, and whether there are others


def over_all_ranks(calls: Calls, steps: Steps) -> dict[Kind, Row]:
    """Return `calls` with sums that are means over all ranks, not over those that took part.

    Groups of the same kind on other ranks are put together: each rank calls a barrier in its own.
    """
    joined: dict[Kind, list[tuple[str, int, Row]]] = {}
    for kind, row in calls.items():
        alike = joined.setdefault(kind._replace(group=""), [])
        for place, (first, more, others) in enumerate(alike):
            if not others.ranks & row.ranks:
                alike[place] = first, more + 1, others + row
                break
        else:
            alike.append((kind.group, 0, row))
    return {
        kind._replace(group=f"{first} and {more} more" if more else first): _of_all(
            row, steps.rank_steps, len(steps.ranks)
        )
        for kind, alike in joined.items()
        for first, more, row in alike
    }


def _of_all(row: Row, rank_steps: int, ranks: int) -> Row:
    # A rank that takes no part is not held.
    least = row.least_exposed_ns if row.ranks.bit_count() >= ranks else 0.0
    known = least if row.least_exposed_ns is not None else None
    return replace(row, rank_steps=rank_steps, least_exposed_ns=known)


def sends_buffers(kind: Kind, run: Run) -> bool:
    """Say whether this is what DDP's C++ sends before a forward.

    A program that calls a broadcast waits for it.
    """
    is_sent = family(kind.op) == "broadcast" and kind.group_size > 1 and kind.role == "data"
    is_in_cpp = kind.phase == "forward" and kind.is_async and not kind.requested
    return run.has_ddp and is_sent and is_in_cpp


def calls_per_step(calls: AnyCalls) -> float:
    """Return the calls of one rank and step."""
    return sum(row.calls_per_step for row in calls.values())


def bytes_per_step(calls: AnyCalls) -> float:
    """Return the bytes of one rank and step."""
    return sum(row.bytes_per_step for row in calls.values())


def blocked_ms(calls: AnyCalls) -> float | None:
    """Return how long a step is held by `calls`, mean over ranks; None where not measured."""
    known = [row.exposed_ms_per_step for row in calls.values()]
    return None if None in known else sum(ms for ms in known if ms is not None)


def least_blocked_ms(calls: AnyCalls) -> float | None:
    """Return how long a step blocks the rank that is blocked least; None where not measured.

    That rank comes last, and is held by the calls themselves. The others are held by its coming
    late as well.
    """
    known = [row.least_exposed_ns for row in calls.values()]
    return None if None in known else sum(ns for ns in known if ns is not None) / 1e6


def own_ms(run: RunSummary, calls: Calls, *, are_apart: bool = False) -> float | None:
    """Return how long a step is held by `calls` themselves; None where not measured.

    Where ranks come late in turn, that is less than `least_blocked_ms`: each waits for others, and
    would do so in the next call that is kept, or if they `are_apart` in the next of them.
    """
    least_ms = least_blocked_ms(calls)
    kinds = {Sized(family(kind.op), kind.group_size, kind.size_class) for kind in calls}
    each_ns = saved_ns(run[Arrivals], run[Steps].measured, kinds, are_apart=are_apart)
    if least_ms is None or each_ns is None:
        return least_ms
    return min(least_ms, each_ns * calls_per_step(calls) / 1e6)


def share_of_step(ms: float, steps: Steps) -> float:
    """Return `ms` of each step as a share of the mean length of the measured steps."""
    return ms * 1e6 / steps.mean_ns if steps.mean_ns else 0.0


def caller(calls: Calls) -> Caller | None:
    """Return the library that issues most of these calls; None: the program itself, or several."""
    sites, libraries = Counter[str](), Counter[str]()
    for _, row in _longest_first(calls):
        sites.update(dict(row.sites))
    for site, count in sites.items():
        libraries[frames.library(site)] += count
    name = next((one for one, count in libraries.items() if 2 * count > sites.total()), "")
    if name in ("", _STANDARD):
        return None
    inside = [site for site in sites if frames.library(site) == name]
    site = frames.shortened(max(inside, key=sites.__getitem__))  # of equals, the table's first
    return Caller(name, f"{site} and other lines" if len(inside) > 1 else site)


def calls_table(calls: Calls) -> Table:
    """List calls with their sites, those that hold longest first."""
    return Table(
        columns=(
            Column("operation"),
            Column("group"),
            Column("phase"),
            Column("called from"),
            Column("calls per step", "count"),
            Column("mean size", "bytes"),
            Column("blocked per step, mean over ranks", "ms"),
            Column("blocked per step, least of the ranks", "ms"),
        ),
        rows=tuple(
            (
                kind.requested or kind.op,
                kind.group,
                kind.phase,
                ", ".join(site for site, _ in row.sites[:2]),
                round(row.calls_per_step, 2),
                None if kind.size_class == SIZE_NOT_KNOWN else row.nbytes // max(row.calls, 1),
                row.exposed_ms_per_step,
                None if row.least_exposed_ns is None else row.least_exposed_ns / 1e6,
            )
            for kind, row in _longest_first(calls)[:_ROWS]
        ),
    )


def _longest_first(calls: Calls) -> list[tuple[Kind, Row]]:
    return sorted(calls.items(), key=lambda item: (-(item[1].exposed_ns or 0), -item[1].calls))
