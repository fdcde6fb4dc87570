"""What the hooks in C record is what those in Python do, also where nothing was compiled."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.dist.launch import ROOT

PROGRAM = """
import sys

if sys.argv[1] == "Python":
    sys.modules["dsprof.recording.recorder._hot"] = None  # as if it were not there

import json, tempfile
from pathlib import Path

import deepspeed.runtime.zero.stage_1_and_2 as stage_1_and_2, torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof
from dsprof.recording.recorder.hot_state import compiled

assert (compiled is None) == (sys.argv[1] == "Python")


class Bucket:
    elements, params, index = 8, [1, 2], 1


class Optimizer(stage_1_and_2.DeepSpeedZeroOptimizer):
    partition_gradients, overlap_comm, reduce_bucket_size = True, True, 5e8
    ipg_buckets = {torch.float32: Bucket()}

    def __init__(self):
        pass


def flush(self, comm_dtype=None):
    dist.all_reduce(torch.ones(8))


stage_1_and_2.DeepSpeedZeroOptimizer.reduce_ipg_grads = flush
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
out = tempfile.mkdtemp()
dsprof.enable(out=out)
pair = dist.new_group([0, 1])
for step in range(3):
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX)
    works = [dist.all_reduce(torch.ones(3, dtype=torch.bfloat16), async_op=True) for _ in range(3)]
    dist.all_reduce(torch.ones(4), group=pair)
    works[1].wait()
    dist.all_gather_into_tensor(torch.ones(16), torch.ones(4), group=dist.group.WORLD)
    dist.reduce_scatter_tensor(torch.ones(4), torch.ones(16))
    dist.all_to_all_single(torch.ones(4), torch.ones(4))
    dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)])
    dist.broadcast(torch.ones(4), 2)
    dist.barrier()
    Optimizer().reduce_ipg_grads(comm_dtype=torch.float32)
    Optimizer().reduce_ipg_grads()
    with dsprof.annotate("mine"):
        dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (4,)))
    dsprof.step()
dsprof.disable()
[file] = Path(out).glob("*.json")
print("records", file.read_text())
"""


def records(way: str) -> list[dict[str, Any]]:
    """Return what a program leaves in its trace: no times, which no two runs share."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, way]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.partition("records ")[2].splitlines()
    events = [json.loads(line.strip("[,]")) for line in lines if line.startswith('{"cat"')]
    kept = ("comm", "flush", "step", "user", "group")
    return [_plain(event) for event in events if event["cat"] in kept]


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    args = {name: value for name, value in event["args"].items() if not name.endswith("_ns")}
    has = {f"has {name}" for name in event["args"] if name.endswith("_ns")}
    return {"name": event["name"], **args, **dict.fromkeys(sorted(has), True)}


OLDER = """
import sys, types

sys.modules["dsprof.recording.recorder._hot"] = types.ModuleType("_hot")

from dsprof.recording.recorder.hot_state import HotState, compiled

print(compiled, HotState.__module__)
"""


def test_an_extension_of_older_sources_is_left_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OLDER], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["None", "dsprof.recording.recorder.hot_state"]


@pytest.mark.timeout(500)
def test_both_record_the_same() -> None:
    in_c, in_python = records("C"), records("Python")
    assert len(in_c) > 40
    for mine, other in zip(in_c, in_python, strict=True):
        assert mine == other
