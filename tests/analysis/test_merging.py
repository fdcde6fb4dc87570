from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import reduce
from itertools import permutations
from random import Random
from typing import Any

import numpy as np
import pytest

from dsprof.analysis import per_rank
from dsprof.analysis.aggregates import AGGREGATES
from dsprof.analysis.pool import collect
from dsprof.analysis.summary import RankClock, RunSummary
from dsprof.diagnosis import build
from dsprof.diagnosis.document import to_json
from dsprof.trace.run import RunFiles
from dsprof.trace.schema import OpTotals, RollUp, Site
from tests.factories import device, environment, hangs, logs
from tests.factories.device_run import device_rank, synchronisations
from tests.factories.engines import interleaved
from tests.factories.trace import (
    copy,
    fetch,
    group,
    header,
    issued,
    rank_trace,
    step,
    sync,
    zero_rank,
)


def zero(rank: int):
    """A rank with everything that ZeRO does in a step, of which each rank does more."""

    def more(number: int, start: float):
        begin = start + 60
        for place in range(rank + 1):
            gather = {"step": number, "phase": "forward", "fetch": 100 * number + place + 1}
            yield issued("all_gather", begin, begin + 4, wait=begin + 1, waited=begin + 4, **gather)
            yield sync("send", begin + 5, 1 + rank, step=number, peer=1)

    at = [(number, 100 * number) for number in range(6)]
    return zero_rank(
        rank,
        3,
        comm_ms=4 + rank,
        accumulation=rank + 1,
        extra=more,
        fetches=[
            fetch(100 * number + place + 1, start + 60, 4, step=number, phase="forward")
            for number, start in at
            for place in range(rank + 1)
        ],
        copies=[copy(start + 70, 2 + rank, step=number) for number, start in at],
    )


def two_engines(rank: int):
    """A rank of which engine 2 takes a step in each micro-step, or in every second one."""
    trace = interleaved((2, 2), accumulating=rank + 1)
    trace.header = header(rank)
    return trace


def device_of(rank: int):
    stops = synchronisations(rank + 1, 2.5)
    return device_rank(rank, blocked_ms=20 + rank, buckets=rank + 1, stalls=stops)


def profile(rank: int):
    return device.busy(rank, compute=40 + rank, comm=20 - rank, hidden=5 * rank)


def environment_of(rank: int):
    variables = {"NCCL_ALGO": "Ring" if rank else "Tree", f"NCCL_OF_{rank}": "1"}
    return environment.rank_trace(rank, variables, engine={"zero_optimization": {"stage": rank}})


def called_from_everywhere(rank: int):
    """A rank of four, in pairs, whose calls come from more lines than a report names."""
    calls = [
        sync("all_reduce", 10 * number + 1, 1, step=number, site=1 + (number * (rank + 1)) % 7)
        for number in range(60)
    ]
    mates = [rank // 2 * 2, rank // 2 * 2 + 1]
    return rank_trace(
        rank,
        4,
        comm=calls,
        steps=[step(number, 10 * number, 10 * number + 9) for number in range(60)],
        groups={1: group(4, key=f"pair {mates}", ranks=mates, label=f"pair {rank // 2}")},
        sites={number: Site(number, "train.py", number) for number in range(1, 8)},
    )


def of_groups_that_some_know_better(rank: int):
    """A rank of four, of which each knows another role or label of a group; rank 2 is late."""
    late = 8 if rank == 2 else 0
    calls = [sync("all_reduce", 40 * n + 1 + late, 10 - late, step=n, seq=n) for n in range(60)]
    role = ("", "pipeline", "data", "data")[rank]
    groups = {
        1: group(4, key="w", ranks=[0, 1, 2, 3], label="world"),
        2: group(4, id=2, key="p", ranks=[0, 1], label=f"group {rank}", name="2", role=role),
    }
    steps = [step(n, 40 * n, 40 * n + 39) for n in range(60)]
    return rank_trace(rank, 4, comm=calls, steps=steps, groups=groups)


def without_steps(rank: int):
    """A rank of a rolling recording that has no steps: sums over time."""
    spans = [RollUp(at, 10, 0, 0, 10**10, calls=rank + 1, until_ns=at) for at in range(0, 30, 10)]
    ops = {f"op {rank % 2}": OpTotals(3 * (rank + 1), 100 + rank, 7)}
    spans += [RollUp(0, 3600, 0, 0, 3 * 10**10, ops=ops)]
    trace = rank_trace(rank)
    trace.rollups = {one.span: one for one in spans}
    return trace


RUNS = {
    "without steps": lambda: map(without_steps, range(3)),
    "groups that some know better": lambda: map(of_groups_that_some_know_better, range(4)),
    "calls from everywhere": lambda: map(called_from_everywhere, range(4)),
    "ZeRO": lambda: map(zero, range(3)),
    "several engines": lambda: map(two_engines, range(2)),
    "device": lambda: map(device_of, range(3)),
    "profiles": lambda: map(profile, range(3)),
    "environment": lambda: map(environment_of, range(3)),
    "logs": lambda: logs.read(logs.run(*(logs.said(f"NET/Socket {n}", n) for n in range(4)))),
    "hang": lambda: hangs.without(2),
    "nothing": lambda: (rank_trace(0), rank_trace(1)),
}


def plain(value: Any) -> Any:
    """Everything that a value holds, in an order of its own."""
    if is_dataclass(value):
        return [(one.name, plain(getattr(value, one.name))) for one in fields(value)]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return sorted((repr(key), plain(one)) for key, one in value.items())
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    return value


@pytest.fixture(scope="module")
def runs():
    return {name: list(run()) for name, run in RUNS.items()}


@pytest.mark.parametrize("kind", AGGREGATES)
def test_ranks_may_be_merged_in_any_grouping_and_order(runs, kind):
    merge = kind.merge
    for run, traces in runs.items():
        parts = [kind.collect(trace, RankClock()) for trace in traces]
        ways = [plain(reduce(merge, order)) for order in permutations(parts)]
        ways += [plain(reduce(lambda a, b: merge(b, a), order)) for order in permutations(parts)]
        assert all(way == ways[0] for way in ways), run


def merged_at_random(parts: list[RunSummary], random: Random) -> RunSummary:
    """Merge neighbours of a shuffled row until one is left."""
    random.shuffle(parts)
    while len(parts) > 1:
        place = random.randrange(len(parts) - 1)
        parts[place : place + 2] = [parts[place].merge(parts[place + 1])]
    return parts[0]


@pytest.mark.parametrize("run", RUNS)
def test_the_diagnosis_is_the_same_to_the_last_byte_in_whatever_order_ranks_come(run, monkeypatch):
    parts = [collect(trace, RankClock(), AGGREGATES) for trace in RUNS[run]()]

    def diagnosis(seed: int) -> bytes:
        merged = merged_at_random([*parts], Random(seed))
        monkeypatch.setattr(build, "summarise", lambda *_, **__: merged)
        return to_json(build.diagnose(RunFiles((), ())))

    first = diagnosis(0)
    assert all(diagnosis(seed) == first for seed in range(1, 12))


@pytest.mark.parametrize("run", RUNS)
def test_the_diagnosis_is_the_same_to_the_last_byte_where_facts_of_ranks_are_packed(
    run, monkeypatch
):
    parts = [collect(trace, RankClock(), AGGREGATES) for trace in RUNS[run]()]

    def diagnosis() -> bytes:
        return to_json(build.diagnosis_of(merged_at_random([*parts], Random(3)).in_order(), {}))

    loose = diagnosis()
    monkeypatch.setattr(per_rank, "PACKED_RANKS", 2)
    assert diagnosis() == loose
