"""The event path on a real GPU, against torch.profiler's record of kernels. `make test-gpu`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dsprof
from dsprof.analysis.aggregates.steps import Steps
from dsprof.hooks.wire import unseen
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from tests.device import kineto
from tests.device.programs.steps import STEPS, WARMUP
from tests.dist.launch import launch

pytestmark = pytest.mark.gpu

PROGRAMS = Path(__file__).parent / "programs"
ENV = {"DS_ACCELERATOR": "cuda", "CUDA_VISIBLE_DEVICES": "0"}
MEASURED = STEPS - WARMUP


def run(program: str, nproc: int, *args: object) -> None:
    launch(PROGRAMS / program, nproc, args=args, env=ENV).check()


def exposed_us(folder: Path, rank: int = 0) -> float:
    """Return what dsprof calls exposed in the steps that the profiler saw, of one rank."""
    row = dsprof.load(folder / "trace")[Steps].ranks[rank]
    assert row.exposed_ns is not None
    assert row.on_device
    return float(row.exposed_ns[-MEASURED:].sum()) / 1000


def trace(folder: Path, rank: int = 0) -> RankTrace:
    found = read_trace(folder / "trace" / f"trace.rank{rank:05d}.json")
    assert found.trailer is not None
    assert found.trailer.failed_hooks == {}
    assert found.trailer.lost_stalls == 0
    return found


@pytest.mark.parametrize("how", ["sync", "async", "side"])
def test_exposed_communication_is_that_of_the_kernels(tmp_path: Path, how: str) -> None:
    run("nccl_one_rank.py", 1, tmp_path, how)
    file = tmp_path / "kineto.rank0.json"
    # Beside other streams kernels also wait for processors, which is no wait of a stream.
    oracle = kineto.gaps_us(file, 3, 1) if how == "side" else kineto.exposed_us(file)
    found = trace(tmp_path)
    assert len(found.device_steps) >= MEASURED
    print(f"{how}: kernels {oracle:.0f} us, events {exposed_us(tmp_path):.0f} us")
    assert oracle > 1000
    assert exposed_us(tmp_path) == pytest.approx(oracle, rel=0.05)


def test_gloo_holds_the_stream_that_computes(tmp_path: Path) -> None:
    run("gloo_two_ranks.py", 2, tmp_path)
    for rank in range(2):
        oracle = kineto.idle_us(tmp_path / f"kineto.rank{rank}.json")
        trace(tmp_path, rank)
        print(f"rank {rank}: kernels {oracle:.0f} us, events {exposed_us(tmp_path, rank):.0f} us")
        assert exposed_us(tmp_path, rank) == pytest.approx(oracle, rel=0.05)


def test_a_graph_is_captured_and_replayed_as_without_dsprof(tmp_path: Path) -> None:
    run("graphs.py", 1, tmp_path)
    assert float((tmp_path / "result").read_text()) == STEPS - 1
    found = trace(tmp_path)
    assert found.collectives.captured.sum() == 2
    assert any("were captured into CUDA graphs" in note.text for note in found.notes)
    replays = {note.text: note.count for note in found.notes if note.text == unseen.REPLAYS}
    assert replays == {unseen.REPLAYS: STEPS}
    assert dsprof.load(tmp_path / "trace")[Steps].total.exposed_ns is None


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_with_overlap_comm_trains_the_same_and_is_timed(tmp_path: Path, stage: int) -> None:
    run("zero.py", 1, tmp_path, stage)
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert losses["bare"] == losses["recorded"]
    found = trace(tmp_path)
    timed = {stall.collective for stall in found.stalls if stall.kind in ("collective", "wait")}
    late = found.collectives.step >= WARMUP
    assert set(found.collectives.id[late & (found.collectives.step < 7)].tolist()) <= timed
