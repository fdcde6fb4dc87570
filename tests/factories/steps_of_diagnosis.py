"""What a hand-made diagnosis says of its steps: parts, waits, memory, a timeline."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dsprof.diagnosis.parts.memory import RankMemory
from dsprof.diagnosis.parts.steps import StepMap, StepMark, StepParts, Steps, TypicalStep
from dsprof.diagnosis.parts.timelines import Bar, Timeline

MS = 1_000_000
MIB = 2**20


def unsplit_steps() -> Steps:
    """One step of 627 ms of which no part could be measured."""
    whole = StepParts(
        step=0,
        compute_ns=None,
        exposed_comm_ns=None,
        copies_ns=None,
        idle_ns=None,
        other_ns=627 * MS,
        total_ns=627 * MS,
    )
    method = "not measurable: events were left out of the files"
    return Steps(total=whole, rows=[whole], measured_steps=1, method=method)


def typical(steps: Steps) -> TypicalStep:
    """The measured step of median length."""
    measured = [row for row in steps.rows if row.is_measured]
    middle = sorted(measured, key=lambda row: row.total_ns)[len(measured) // 2]
    return TypicalStep(
        parts=middle, statistic=f"median of {len(measured)} measured steps", steps=len(measured)
    )


def step_map(ranks: int, rows: Sequence[StepParts]) -> StepMap:
    """Ranks that wait the less the higher they are; the last is the straggler of the last step."""
    numbers = [row.step or 0 for row in rows]
    waits = [[(ranks - rank) * 10 * MS for _ in rows] for rank in range(ranks)]
    last = len(rows) - 1
    marks = (
        [
            StepMark(
                kind="straggler",
                step=numbers[last],
                column=last,
                rank=ranks - 1,
                row=ranks - 1,
                text=f"The others wait 40 ms for rank {ranks - 1}",
            )
        ]
        if rows
        else []
    )
    return StepMap(
        ranks=[(rank, rank) for rank in range(ranks)],
        steps=[(number, number) for number in numbers],
        total_ns=[[row.total_ns for row in rows] for _ in range(ranks)],
        exposed_ns=waits,
        compute_ns=[[row.compute_ns or -1 for row in rows] for _ in range(ranks)],
        marks=marks,
    )


def timeline(why: str, step: int, ranks: int) -> Timeline:
    """Two micro-steps of forward and backward, a reduction in each backward, then the step."""
    bars: list[Bar] = []
    for rank in range(ranks):
        late = 40 * MS if why == "worst" and rank == ranks - 1 else 0
        end = 0
        for micro in range(2):
            start, middle = end, end + 62 * MS + late // 2
            end = middle + 118 * MS
            bars += [
                Bar(rank=rank, lane="phase", kind="forward", start_ns=start, end_ns=middle),
                Bar(rank=rank, lane="phase", kind="backward", start_ns=middle, end_ns=end),
            ]
            for bucket in range(6):
                issue = middle + (18 * bucket + 6) * MS
                label = f"bucket {bucket} of micro-step {micro}, 4.75 MiB"
                bars += [
                    Bar(
                        rank=rank,
                        lane="communication",
                        kind="all_reduce",
                        start_ns=issue,
                        end_ns=issue + 9 * MS,
                        label=label,
                        group="world",
                        module=f"layers.{bucket}",
                    ),
                    Bar(
                        rank=rank,
                        lane="activity",
                        kind="blocked",
                        start_ns=issue,
                        end_ns=issue + 7 * MS,
                    ),
                ]
        bars += [
            Bar(rank=rank, lane="phase", kind="step", start_ns=end, end_ns=end + 52 * MS),
            Bar(
                rank=rank,
                lane="communication",
                kind="all_gather_into_tensor",
                start_ns=end + 28 * MS,
                end_ns=end + 49 * MS,
                label="updated parameters",
                group="experts",
            ),
            Bar(
                rank=rank,
                lane="activity",
                kind="blocked",
                start_ns=end + 28 * MS,
                end_ns=end + 49 * MS,
            ),
        ]
    return Timeline(step=step, why=why, duration_ns=max(bar.end_ns for bar in bars), bars=bars)


def step_parts(step: int, chance: random.Random, late: bool, last_rank: int) -> StepParts:
    """One step of about 430 ms; a late rank makes it longer."""
    exposed = round((84 + chance.random() * 12 + (46 if late else 0)) * MS)
    compute = round((296 + chance.random() * 14 + (180 if step == 0 else 0)) * MS)
    idle, other = round((8 + chance.random() * 6) * MS), round((17 + chance.random() * 4) * MS)
    total = exposed + compute + idle + other
    return StepParts(
        step=step,
        compute_ns=compute,
        exposed_comm_ns=exposed,
        copies_ns=None,
        idle_ns=idle,
        other_ns=other,
        total_ns=total,
        micro_steps=2,
        is_measured=step >= 2,
        slowest_rank=last_rank if late else 0,
        fastest_total_ns=round(total * 0.985),
        slowest_total_ns=round(total * (1.06 if late else 1.01)),
    )


def summed(rows: list[StepParts]) -> StepParts:
    """All steps together."""
    names = ("compute_ns", "exposed_comm_ns", "idle_ns", "other_ns", "total_ns")
    sums = {name: sum(getattr(row, name) for row in rows) for name in names}
    return StepParts(step=None, copies_ns=None, **sums)


def wait(rank: int, row: StepParts, ranks: int, chance: random.Random) -> int:
    """What a rank waited in a step; -1 where it has no record of it."""
    if rank == 0 and row.step == 1:
        return -1
    assert row.exposed_comm_ns is not None
    own = 0.35 if rank == row.slowest_rank and rank == ranks - 1 else 0.9 + 0.2 * chance.random()
    return round(row.exposed_comm_ns * own)


def memory(rank: int, steps: int) -> RankMemory:
    """Memory of a rank that grows for six steps."""
    rss = [(1180 + 9 * rank + min(step, 6) * 14) * MIB for step in range(steps)]
    return RankMemory(
        rank=rank,
        peak_rss_bytes=max(rss) + 40 * MIB,
        last_rss_bytes=rss[-1],
        host_total_bytes=24 * 1024 * MIB,
        least_host_available_bytes=9 * 1024 * MIB,
        shm_total_bytes=64 * MIB,
        least_shm_free_bytes=None,
        steps=list(range(steps)),
        rss_bytes=rss,
        gathered_bytes=[250 * MIB] * steps,
    )
