"""Hand-made diagnoses: a believable run of any size, an empty one, a hostile one."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from dsprof.diagnosis.headline import headline_of, next_lines
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.communication import (
    ArrivalInfo,
    ArrivalRow,
    CommunicationRow,
    CopyRow,
    FetchRow,
    FlushRow,
    TransferRow,
)
from dsprof.diagnosis.parts.environment import Difference, EnvironmentInfo
from dsprof.diagnosis.parts.run import HookNote, Quality, RunInfo, ThresholdInfo
from dsprof.diagnosis.parts.steps import AnnotationRow, StepParts, Steps, WaitMatrix
from dsprof.diagnosis.parts.timelines import TimelinePlace
from dsprof.diagnosis.tiles import kind_of, tiles
from dsprof.findings.finding import Column, Facet, Finding, Severity, Status, Table
from tests.factories.figures_of_diagnosis import (
    bucket_fill,
    call_sites,
    peer_traffic,
    topology,
)
from tests.factories.steps_of_diagnosis import (
    MIB,
    MS,
    memory,
    step_map,
    step_parts,
    summed,
    timeline,
    typical,
    unsplit_steps,
    wait,
)


def diagnosis(ranks: int = 2, steps: int = 4, **changes: Any) -> Diagnosis:
    """A ZeRO-2 run in which the last rank is late in every seventh step."""
    chance = random.Random(ranks * 1000 + steps)
    rows = [
        step_parts(step, chance, late=step % 7 == 5, last_rank=ranks - 1) for step in range(steps)
    ]
    everyone = list(range(ranks))
    made = Diagnosis(
        run=RunInfo(
            world_size=ranks,
            ranks=everyone,
            hosts=["node-a", "node-b"],
            steps=steps,
            backend="gloo",
            device="cpu",
            versions={"torch": "2.13.0", "deepspeed": "0.19.8", "python": "3.11.7"},
            run_key="3f9c1d",
            started="2026-03-02T09:41:07Z",
            setup="DeepSpeed ZeRO-2, bf16, accumulation 2",
            source=[f"dsprof-out/trace.rank{rank:05d}.json" for rank in everyone],
        ),
        quality=Quality(
            waits=ranks * steps * 6,
            clock_method="one host: shared clock",
            training_cost_share=0.0021,
            writer_cost_share=0.0013,
            line=f"{ranks} of {ranks} ranks, complete; recording cost 0.2 % of a step",
        ),
        steps=Steps(
            total=summed(rows[2:]),
            rows=rows,
            warmup_steps=2,
            measured_steps=max(steps - 2, 0),
            method="host clock: time blocked in synchronous calls and in waits",
        ),
        dsprof_version="0.1.0",
        verdict="A fifth of every step waits for communication, most of it for gradients that "
        "are reduced twice: reduce once per optimizer step to save 30 to 48 ms of 430 ms.",
        findings=findings(),
        communication=communication(ranks, steps),
        call_sites=call_sites(),
        topology=topology(ranks),
        peer_traffic=peer_traffic(ranks),
        bucket_fill=bucket_fill(),
        transfers=transfers(ranks),
        flushes=flushes(ranks * steps),
        fetches=[
            FetchRow(
                kind=kind,
                phase="forward",
                calls=24 * ranks * steps,
                calls_per_step=24.0,
                elements=1_180_000,
                wait_ns=3 * MS * steps,
            )
            for kind in ("fetch", "prefetch", "release")
        ],
        copies=[
            CopyRow(
                what="gradient",
                direction="to host",
                phase="backward",
                calls=6 * ranks * steps,
                calls_per_step=6.0,
                bytes=6 * MIB * ranks * steps,
                bytes_per_step=6.0 * MIB,
                duration_ns=2 * MS * ranks * steps,
            )
        ],
        annotations=[
            AnnotationRow(
                name="data",
                calls=2 * ranks * steps,
                calls_per_step=2.0,
                duration_ns=5 * MS * ranks * steps,
                exposed_ns=MS * ranks * steps,
            )
        ],
        memory=[memory(rank, steps) for rank in everyone],
        environment=environment(),
        timelines=[
            timeline("worst", steps - 1, ranks),
            timeline("median", steps // 2, ranks),
            *(timeline("sample", step, ranks) for step in range(0, steps // 2, 2)),
        ],
        timeline_places=[
            TimelinePlace(finding=0, step=steps // 2, operation="all_reduce", ranks=[0])
        ],
        waits=WaitMatrix(
            ranks=everyone,
            steps=list(range(steps)),
            exposed_ns=[[wait(rank, row, ranks, chance) for row in rows] for rank in everyone],
        ),
        arrivals=ArrivalInfo(
            rows=[
                ArrivalRow(
                    rank=rank,
                    last=9 - rank,
                    collectives=40,
                    caused_ns=20_000_000 // (rank + 1),
                    waited_ns=3_000_000 * rank,
                    transfer_ns=7_000_000,
                )
                for rank in everyone
            ],
            last_ranks={str(step): 0 for step in range(steps)},
        ),
        thresholds=[
            ThresholdInfo(rule="data-quality", name="clock_bound_ms", value=1.0),
            ThresholdInfo(rule="data-quality", name="cost_share", value=0.02),
            ThresholdInfo(rule="communication-bound-step", name="exposed_share", value=0.2),
            ThresholdInfo(rule="small-collectives", name="bytes", value=65536, is_default=False),
        ],
    )
    lead = made.findings[0]
    made.headline, made.next_lines = headline_of(lead), next_lines(made.findings, lead)
    made.steps.typical = typical(made.steps) if made.steps.measured_steps else None
    made.step_map = step_map(ranks, rows[2:])
    made.kind, made.tiles = kind_of(made), tiles(made)
    return msgspec.structs.replace(made, **changes)


def late_in_another_step_of_a_column() -> Diagnosis:
    """A run whose map has the longest step in one column with that in which a rank is late."""
    made = diagnosis(4, 20)
    (mark,) = made.step_map.marks
    made.step_map.steps[mark.column] = (18, 19)
    mark.step = 18
    return made


def empty() -> Diagnosis:
    """A run of which nothing could be measured."""
    nothing = StepParts(
        step=None,
        compute_ns=None,
        exposed_comm_ns=None,
        copies_ns=None,
        idle_ns=None,
        other_ns=0,
        total_ns=0,
    )
    return Diagnosis(
        run=RunInfo(world_size=4, ranks=[], hosts=[], steps=0),
        quality=Quality(missing_ranks=[0, 1, 2, 3]),
        steps=Steps(total=nothing),
        findings=[
            Finding(
                rule="low-comm-overlap",
                title="Communication is overlapped",
                status=Status.UNKNOWN,
                summary="No step was recorded.",
            )
        ],
    )


def hostile(text: str) -> Diagnosis:
    """A full diagnosis in which every free string is `text`: values, keys, list items."""
    plain = msgspec.to_builtins(diagnosis())
    return msgspec.convert(_replaced(plain, text), Diagnosis)


_CLOSED = {"status", "severity", "confidence", "kind"}  # fields of a finding with fixed values


def _replaced(value: Any, text: str, name: str = "") -> Any:
    if isinstance(value, dict):
        free = name in ("versions", "variables", "effective", "values", "written_config", "files")
        return {
            (f"{key}{text}" if free else key): _replaced(v, text, key) for key, v in value.items()
        }
    if isinstance(value, list):
        return [_replaced(item, text, name) for item in value]
    return text if isinstance(value, str) and name not in _CLOSED else value


def findings() -> list[Finding]:
    """One finding of each status and severity that a page must show."""
    return [
        Finding(
            rule="reduction-every-micro-step",
            title="Gradients are reduced at every micro-step",
            status=Status.FAIL,
            severity=Severity.HIGH,
            category="communication",
            summary="Each rank reduced 27.4 MiB of gradients twice per optimizer step.",
            cause="ZeRO-2 partitions gradients as they appear, so accumulation over 2 micro-steps "
            "sends every gradient twice.",
            action="Use ZeRO-1 with the same accumulation: gradients are then reduced once, at "
            "the accumulation boundary.",
            evidence=(
                Table(
                    (
                        Column("Micro-step", "count"),
                        Column("Bytes", "bytes"),
                        Column("Exposed", "ns"),
                        Column("Share of step", "share"),
                    ),
                    ((0, 28_731_392, 38_200_000, 0.0927), (1, 28_731_392, 41_700_000, 0.1012)),
                    "Gradient traffic of one rank",
                ),
            ),
            problem="Gradients are reduced at every micro-step",
            fix="Set `stage` to 1 and `reduce_bucket_size` to 5e7",
            config_patch={"zero_optimization": {"stage": 1, "reduce_bucket_size": 50000000}},
            saving_ms_per_step=(30.0, 48.0),
            saving_share=(0.07, 0.112),
            facets=(
                Facet(
                    rule="communication-bound-step",
                    title="The step waits for communication",
                    summary="Exposed communication takes 91.2 ms per step (21 %). "
                    "Most is transfer.",
                ),
            ),
            confidence="high",
            docs="rules/reduction-every-micro-step.md",
        ),
        Finding(
            rule="small-collectives",
            title="Many collectives are too small to fill the link",
            status=Status.FAIL,
            severity=Severity.MEDIUM,
            category="communication",
            summary="62 % of the calls move 0.4 % of the bytes.",
            cause="Buckets are flushed at the end of backward before they are full.",
            action="Raise reduce_bucket_size to hold the gradients of one micro-step.",
            problem="62 % of the calls are too small to fill the link",
            fix="Raise `reduce_bucket_size`",
            ranks=(0, 1),
            saving_ms_per_step=(2.0, 2.0),
            confidence="medium",
        ),
        Finding(
            rule="allreduce-for-sharded-gradients",
            title="Gradients of ZeRO-2 travel by all_reduce",
            status=Status.INFO,
            category="communication",
            summary="By design: this stage has no reduce_scatter; 13.7 MiB per step more than it "
            "would take.",
            saving_bytes_per_step=14_365_696,
            evidence=(
                Table((Column("Operation"), Column("Calls", "count")), (("all_reduce", 12),)),
            ),
        ),
        Finding(
            rule="comms-logger-enabled",
            title="DeepSpeed's communication logger is off",
            status=Status.PASS,
            summary="",
        ),
        Finding(
            rule="allocator-fragmentation",
            title="The allocator is not fragmented",
            status=Status.NOT_APPLICABLE,
            summary="The run used no GPU.",
        ),
        Finding(
            rule="low-comm-overlap",
            title="Communication is overlapped",
            status=Status.UNKNOWN,
            summary="No collective was issued asynchronously.",
        ),
        Finding(
            rule="misspelt-variable",
            title="Every variable is known",
            status=Status.ERROR,
            summary="The rule stopped: KeyError('NCCL_DEBUG').",
        ),
    ]


def communication(ranks: int, steps: int) -> list[CommunicationRow]:
    """Two kinds of all_reduce, an all_gather, and one row that could not be timed."""
    kinds = (
        ("all_reduce", "reduce", "backward", "16-64 MiB", 2.0, 28_731_392, 61.0, False),
        ("all_gather_into_tensor", "all_gather", "step", "4-16 MiB", 1.0, 14_365_696, 21.5, False),
        ("all_reduce", "all_reduce", "step", "< 4 KiB", 3.0, 12, 1.9, True),
        ("broadcast", "broadcast", "forward", "< 4 KiB", 0.5, 64, None, False),
    )
    return [
        CommunicationRow(
            op=op,
            requested=requested,
            group="default",
            group_size=ranks,
            phase=phase,
            size_class=size_class,
            dtype="bfloat16",
            is_async=is_async,
            on_wire=ms is not None,
            calls=round(calls * ranks * steps),
            bytes=round(calls * n_bytes * ranks * steps),
            calls_per_step=calls,
            bytes_per_step=calls * n_bytes,
            in_flight_ns=None if ms is None else round(ms * MS * ranks * steps),
            exposed_ns=None if ms is None else round(ms * MS * ranks * steps),
            algbw=None if ms is None else n_bytes * calls / (ms / 1000),
            busbw=None if ms is None else 1.2 * n_bytes * calls / (ms / 1000),
            site="train.py:118",
        )
        for op, requested, phase, size_class, calls, n_bytes, ms, is_async in kinds
    ]


def unknown_collective() -> CommunicationRow:
    """Calls in a profile that says neither their size nor their group."""
    return CommunicationRow(
        op="send_recv",
        requested="",
        group="unknown",
        group_size=0,
        phase="",
        size_class="not known",
        dtype="",
        is_async=True,
        on_wire=True,
        calls=10,
        bytes=0,
        calls_per_step=5.0,
        bytes_per_step=0.0,
        in_flight_ns=None,
        exposed_ns=None,
        algbw=None,
        busbw=None,
    )


def unsplit() -> Diagnosis:
    """A run with such a step."""
    return msgspec.structs.replace(diagnosis(), steps=unsplit_steps())


def transfers(ranks: int) -> list[TransferRow]:
    """One that reaches half of what the baseline says, and one that is too small to be judged."""
    large = TransferRow(
        op="all_reduce",
        group="world",
        group_size=ranks,
        hosts=1,
        size_class="16-64 MiB",
        calls=40,
        bytes=28_731_392,
        time_ns=30 * MS,
        algbw=0.96e9,
        busbw=1.44e9,
        quick_busbw=1.5e9,
    )
    judged = {"expected_busbw": 2.9e9, "expected_from": "the baseline", "is_judged": True}
    small = {"size_class": "< 4 KiB", "bytes": 12, "time_ns": MS // 2}
    small_speeds = {"algbw": 24e3, "busbw": 36e3, "quick_busbw": 50e3}
    return [
        msgspec.structs.replace(large, **judged),
        msgspec.structs.replace(large, **small, **small_speeds),
    ]


def flushes(count: int) -> list[FlushRow]:
    """A full bucket and the rest at the end of backward."""
    return [
        FlushRow(
            stage=2,
            cause=cause,
            dtype="bfloat16",
            elements=elements,
            capacity=5_000_000,
            fill=elements / 5_000_000,
            bytes=elements * 2,
            parameters=parameters,
            slot=0,
            flushes=2 * count,
            flushes_per_step=2.0,
            wire_ops=["all_reduce"],
            wire_calls=2 * count,
            duration_ns=19 * MS,
            exposed_ns=17 * MS,
        )
        for cause, elements, parameters in (
            ("full", 4_980_736, 22),
            ("end of backward", 811_264, 9),
        )
    ]


def environment() -> EnvironmentInfo:
    """Variables, versions and one difference between ranks."""
    return EnvironmentInfo(
        variables={
            "NCCL_DEBUG": "WARN",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SECRET": "<redacted>",
        },
        effective={"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "2"},
        files={"/etc/nccl.conf": {"NCCL_IB_HCA": "mlx5"}},
        versions={"torch": "2.13.0", "deepspeed": "0.19.8"},
        gpus=[],
        network_devices=["eth0 (25 Gb/s)"],
        limits={"RLIMIT_MEMLOCK": 8 * MIB},
        redacted=["NCCL_SECRET"],
        accelerators=["NVIDIA H100 80GB HBM3 (0000:1b:00.0, NUMA node 0)"],
        adapters=["mlx5_0:1 InfiniBand 400 Gb/sec (4X NDR) ACTIVE mlx5_core"],
        machine={"kernel": "5.15.0", "nvidia_driver": "550.54.15 proprietary"},
        libraries=["/opt/nccl/lib/libnccl.so.2"],
        differences=[Difference(name="NCCL_IB_HCA", values={"mlx5_0": [0], "": [1]})],
        written_config={"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
        effective_config={
            "zero_optimization": {"stage": 2, "overlap_comm": False, "reduce_bucket_size": 5000000},
            "bf16": {"enabled": True},
        },
    )


def flawed_quality() -> Quality:
    """Data with every flaw at once."""
    return Quality(
        missing_ranks=[3],
        unclean_ranks=[1],
        strangers=["trace.rank00009.json: of another run"],
        dropped_events=12,
        broken_lines=1,
        counted_only_steps=5,
        unmatched_waits=2,
        waits=100,
        open_collectives=1,
        clock_bound_ns=180_000,
        clock_method="two hosts: bounded by collectives",
        training_cost_share=0.031,
        hooks=[HookNote(name="deepspeed_zero", why="DeepSpeed 0.9 has no bucket", ranks=[0, 1])],
        notes=["The recorded window began at step 10."],
    )
