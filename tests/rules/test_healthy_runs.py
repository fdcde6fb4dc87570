"""Runs as they should be: no rule fails, whatever the library, however small the model."""

from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules import RULES
from dsprof.rules.communication.unexplained_traffic import UnexplainedTraffic
from dsprof.rules.runner import judge
from tests.factories.device_run import device_rank
from tests.factories.trace import copy, engine, fetch, flush, issued, summary, sync, zero_rank

KIB, MIB = 1 << 10, 1 << 20

_JUDGED = [rule for rule in RULES if not isinstance(rule, UnexplainedTraffic)]
"""That one counts every byte against the size of the model, which is not made here."""


def failures(*ranks) -> set[str]:
    findings = judge(summary(*ranks), _JUDGED)
    return {f.rule for f in findings if f.status in (Status.FAIL, Status.ERROR)}


def two(make, **fields):
    return [make(rank, **fields) for rank in (0, 1)]


def zero_3(rank: int = 0):
    """Parameters gathered ahead, some of them small, and those that persist after the step."""
    comm, fetches = [], []
    for number in range(6):
        start = 100 * number
        for place in range(8):
            key = 1000 + 10 * number + place
            phase = "forward" if place < 4 else "backward"
            told = {"step": number, "phase": phase, "nbytes": 256 * KIB}
            at = start + 8 * place
            kind = "prefetch" if place % 4 else "fetch"
            fetches.append(fetch(key, at, 0.1, kind=kind, step=number, phase=phase))
            comm.append(
                issued("all_gather", at, at + 2, wait=at + 1.5, waited=at + 2, fetch=key, **told)
            )
        told = {"step": number, "phase": "step", "nbytes": 8 * KIB, "dtype": "bfloat16"}
        comm += [sync("all_gather", start + 82 + i / 5, 0.1, **told) for i in range(20)]

    def extra(number, start):
        return [one for one in comm if one.args.step == number]

    return zero_rank(rank, stage=3, op="reduce_scatter", extra=extra, fetches=fetches)


def library_rank(name: str, rank: int, buckets: int, phase: str = "backward", **fields):
    """A rank of DDP or FSDP: its reductions start while backward goes on."""
    comm, flushes = [], []
    for number in range(6):
        for i in range(buckets):
            key, at = 1 + number * buckets + i, 100 * number + 45 + 4 * i
            told = {"step": number, "phase": phase, "nbytes": 20 * MIB}
            op = "all_reduce" if name == "DDP" else "reduce_scatter"
            comm.append(issued(op, at, at + 3, wait=at + 2.9, waited=at + 3, flush=key, **told))
            details = {"library": name, "capacity": 25 * MIB // 4, "elements": 5 * MIB, **fields}
            flushes.append(flush(key, at, 3, **details, **told))

    def extra(number, start):
        return [one for one in comm if one.args.step == number]

    plain = {"engine": None, "flushes": flushes, "comm_ms": 0, "nbytes": 8}
    return zero_rank(rank, extra=extra, **plain)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_zero_with_its_defaults(stage):
    assert failures(*two(zero_rank, stage=stage, nbytes=64 * MIB, comm_ms=30)) == set()


def test_zero_3_with_its_defaults():
    assert failures(zero_3(0), zero_3(1)) == set()


def test_ddp_with_its_defaults():
    assert failures(*(library_rank("DDP", rank, 4, bucket=1) for rank in (0, 1))) == set()


@pytest.mark.parametrize("library", ["FSDP1", "FSDP2"])
def test_fsdp_of_blocks(library):
    ranks = (
        library_rank(library, rank, 6, module="blocks.1", cause="end of module", parameters=9)
        for rank in (0, 1)
    )
    assert failures(*ranks) == set()


def test_offloading_on_a_cpu():
    config = engine(2, offload_optimizer={"device": "cpu", "pin_memory": False})
    copies = [copy(100 * n + 80, 8, step=n, phase="step") for n in range(6)]
    assert failures(*two(zero_rank, engine=config, copies=copies)) == set()


def test_a_rank_by_itself():
    assert failures(zero_rank(0, 1)) == set()


def test_zero_2_on_a_device_that_overlaps():
    config = engine(2, overlap_comm=True)
    ranks = (device_rank(rank, engine=config, buckets=4, blocked_ms=4, mib=16) for rank in (0, 1))
    assert failures(*ranks) == set()
