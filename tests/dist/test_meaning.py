"""What torch's own libraries do with the wire, against what they tell in a run without dsprof."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dsprof.analysis.rank.ddp_buckets import attach_buckets
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from tests.dist.launch import PROGRAMS, launch
from tests.dist.traces import asked_and_sent

pytestmark = pytest.mark.dist

RANKS = 2


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ddp")
    launch(PROGRAMS / "ddp_buckets.py", args=[folder], imported="compiler").check()
    return folder


def traces(folder: Path) -> list[RankTrace]:
    return [read_trace(path) for path in sorted(folder.glob("*.json"))]


def oracle(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"oracle.rank{rank}.json").read_text())


@pytest.mark.parametrize("scenario", ["plain", "view", "unused", "static"])
def test_ddp_buckets_are_those_that_a_communication_hook_sees(ddp: Path, scenario: str) -> None:
    for trace in traces(ddp / scenario):
        attach_buckets(trace)
        seen = [[flush.step, flush.bucket, flush.nbytes] for flush in trace.flushes]
        told = oracle(ddp, trace.rank)[scenario]
        assert seen == [row[:3] for row in told]
        counts = [flush.parameters for flush in trace.flushes]
        assert all(count in (0, row[3]) for count, row in zip(counts, told, strict=True))
        assert max(row[1] for row in told) > 0, "one bucket alone would show little"
        layout = trace.layouts[-1]
        assert layout.is_rebuilt == (scenario != "unused")
        assert layout.comm_hook == ("allreduce_hook" if scenario == "view" else "")
        assert layout.buckets_reduced in (0, len(layout.nbytes))  # DDP's own count


@pytest.mark.parametrize("scenario", ["plain", "view", "unused", "static"])
def test_buckets_of_ddp_ask_for_every_byte(ddp: Path, scenario: str) -> None:
    for trace in traces(ddp / scenario):
        attach_buckets(trace)
        line = asked_and_sent(trace)["gradients"]
        assert line.expected_bytes == (line.nbytes, line.nbytes)
        assert line.expected_calls == (line.calls, line.calls)


def test_ddp_phases_and_micro_steps(ddp: Path) -> None:
    for trace in traces(ddp / "plain"):
        assert [(step.step, step.micro_steps) for step in trace.steps] == [(n, 2) for n in range(4)]
        spans = [(span.name, span.step, span.micro_step) for span in trace.spans]
        assert spans == [
            row
            for step in range(4)
            for row in [
                *((name, step, micro) for micro in range(2) for name in ("forward", "backward")),
                ("step", step, 1),
            ]
        ]


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp")
    launch(PROGRAMS / "fsdp_units.py", 4, args=[folder], imported="compiler").check()
    return folder


def wired(trace: RankTrace, column: str) -> dict[int, list[str]]:
    """Operations by the fetch or flush that they belong to."""
    table, found = trace.collectives, dict[int, list[str]]()
    for number, op in zip(getattr(table, column).tolist(), table.op.tolist(), strict=True):
        found.setdefault(number, []).append(table.words[op])
    return found


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["fsdp1", "fsdp1orig", "fsdp2", "hsdp1", "hsdp2"])
def test_units_of_fsdp_ask_for_what_is_sent(fsdp: Path, scenario: str) -> None:
    for trace in traces(fsdp / scenario):
        found = asked_and_sent(trace)
        asked = [line for line in found.values() if line.expected_bytes is not None]
        assert [line.what for line in asked] == ["gradients", "parameters for use"]
        assert {line.verdict for line in asked} == {"as asked"}, asked


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["fsdp2", "hsdp2"])
def test_fsdp2_gathers_and_reduces_what_its_own_ranges_name(fsdp: Path, scenario: str) -> None:
    for trace in traces(fsdp / scenario):
        told, seen = oracle(fsdp, trace.rank)[scenario], Counter[str]()
        for fetch in trace.fetches:
            if fetch.id in wired(trace, "fetch") and fetch.kind != "release":
                seen[f"FSDP::all_gather{suffix(fetch.module)}"] += 1
            if fetch.kind == "fetch":
                seen[f"FSDP::all_gather_copy_out{suffix(fetch.module)}"] += 1
        for flush in trace.flushes:
            seen[f"FSDP::post_backward_reduce{suffix(flush.module)}"] += 1
        assert seen == {name: told[name] for name in told if name.split(" ")[0] in NAMED}
        assert {fetch.library for fetch in trace.fetches} == {"FSDP2"}
        assert {fetch.kind for fetch in trace.fetches} == {"fetch", "prefetch", "release"}


NAMED = ("FSDP::all_gather", "FSDP::all_gather_copy_out", "FSDP::post_backward_reduce")


def suffix(module: str) -> str:
    return "" if module == "(root)" else f" ({module})"


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["fsdp1", "fsdp1orig", "hsdp1"])
def test_fsdp1_gathers_and_reduces_by_module(fsdp: Path, scenario: str) -> None:
    for trace in traces(fsdp / scenario):
        told = oracle(fsdp, trace.rank)[scenario]
        gathers = [op for number, ops in wired(trace, "fetch").items() if number for op in ops]
        assert gathers.count("all_gather") == told["c10d::allgather_"]
        reductions = [ops for number, ops in wired(trace, "flush").items() if number]
        assert len(reductions) == told["c10d::_reduce_scatter_base_"] == len(trace.flushes)
        modules = {"block0.linear", "block1.linear", "block2.linear", "head"}
        assert {fetch.module for fetch in trace.fetches} == modules
        assert {fetch.kind for fetch in trace.fetches} == {"fetch", "prefetch", "release"}


@pytest.mark.long
def test_fsdp1_that_shares_nothing_out_reduces_by_module(fsdp: Path) -> None:
    for trace in traces(fsdp / "fsdp1whole"):
        told = oracle(fsdp, trace.rank)["fsdp1whole"]
        assert len(trace.flushes) == told["c10d::allreduce_"]
        (asked, *_) = asked_and_sent(trace).values()
        assert (asked.what, asked.verdict) == ("gradients", "as asked")
        assert trace.fetches == []


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["hsdp1", "hsdp2"])
def test_hybrid_sharding_reduces_in_shards_then_among_replicas(fsdp: Path, scenario: str) -> None:
    for trace in traces(fsdp / scenario):
        table = trace.collectives
        roles = {
            (table.words[op], trace.groups[group].role)
            for op, group, flush in zip(table.op, table.group, table.flush, strict=True)
            if flush
        }
        assert roles == {("reduce_scatter_tensor", "shard"), ("all_reduce", "replicate")}


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["fsdp1", "fsdp1orig", "fsdp2", "hsdp1", "hsdp2"])
def test_fsdp_steps_and_phases(fsdp: Path, scenario: str) -> None:
    accumulated = 2 if scenario == "fsdp1" else 1
    for trace in traces(fsdp / scenario):
        assert [step.micro_steps for step in trace.steps] == [1, accumulated, 1]
        spans = [span.name for span in trace.spans]
        once = ["forward", "backward"]
        assert spans == [*once, "step", *once * accumulated, "step", *once, "step"]
