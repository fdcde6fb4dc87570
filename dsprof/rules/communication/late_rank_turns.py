"""late-rank: ranks, or hosts, that are late one after another."""

from __future__ import annotations

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.run.turns import Turns, turns
from dsprof.findings.finding import Column, Finding, Status, Table
from dsprof.findings.wording import duration, listed, named, percent, some
from dsprof.rules.communication.late_rank_case import Case
from dsprof.rules.communication.late_rank_causes import last_arrivals
from dsprof.rules.rule import RuleMeta

_ROWS = 16


def one_after_another(case: Case) -> Turns | None:
    """Return when which rank, or which host, is late, if each is for long and that costs much.

    In a pipeline a rank is late in its stage if one of another stage keeps it waiting.
    """
    run, late = case.run, case.late
    is_staged = any(group.role == "pipeline" for group in run[Arrivals].groups.values())
    if is_staged or late.calls > 1:  # of a sample of calls, steps show no delay, or too much
        return None
    hosts: dict[str, list[int]] = {}
    for rank in late.ranks:
        hosts.setdefault(run[Run].hosts[rank], []).append(rank)
    for sets in ([(rank,) for rank in late.ranks], [*map(tuple, hosts.values())]):
        found = turns(late, sets, case.least_ns / 2)
        if found and found.cost_ns >= case.least_ns:
            shortest_ns = min(turn.steps for turn in found.turns) * case.step_ns
            return found if shortest_ns >= case.thresholds.seconds * 1e9 else None
    return None


def moving_straggler(meta: RuleMeta, case: Case, moving: Turns) -> Finding:
    """Report that what slows ranks moves from one to the next."""
    run, late, known = case.run, case.late, case.known()
    share = case.share(moving.cost_ns)
    first = moving.turns[0]
    kind = "rank" if len(first.ranks) == 1 else "host"
    periods = [
        f"{named(turn.ranks) if kind == 'rank' else run[Run].hosts[turn.ranks[0]]} in steps "
        f"{turn.first:,} to {turn.last:,}"
        for turn in moving.turns
    ]
    ranks = tuple(sorted({rank for turn in moving.turns for rank in turn.ranks}))
    costly = sorted(moving.turns, key=lambda turn: turn.steps * turn.delay_ns, reverse=True)
    shown = sorted(costly[:_ROWS], key=lambda turn: turn.first)
    caption = f"Steps in which each {kind} is late"
    if len(shown) < len(moving.turns):
        caption += f": the {_ROWS} costliest of {len(moving.turns):,} turns"
    waits = f"Ranks wait {duration(moving.cost_ns)} per step ({percent(share)})"
    return meta.finding(
        Status.FAIL,
        f"{waits} for one {kind} after another: {some(periods)}.{known.note}",
        title=f"Ranks wait for one {kind} after another",
        severity=case.thresholds.severity(share * known.share),
        cause=f"Each {kind} is late for a while, and then another one: what slows them moves, "
        "such as another job, or long samples that are stored together.",
        action=f"Check what else ran on each {kind} in these steps, and the length of its samples.",
        problem=f"{waits} for one {kind} after another",
        fix=f"Check what else ran on {periods[0]}",
        ranks=ranks if 2 * len(ranks) <= len(late.ranks) else (),
        steps=tuple(turn.first for turn in shown),
        evidence=(
            last_arrivals(late, case.votes),
            Table(
                columns=(
                    Column("late ranks"),
                    Column("first step"),
                    Column("last step"),
                    Column("others wait longer, median", "ns"),
                ),
                rows=tuple(
                    (listed(turn.ranks), turn.first, turn.last, turn.delay_ns) for turn in shown
                ),
                caption=caption,
            ),
        ),
        explains_ms=moving.cost_ns / 1e6 * (1 - len(first.ranks) / len(late.ranks)),
        confidence="medium",
    )
