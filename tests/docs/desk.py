"""A folder with the files that the documentation speaks of, as its commands expect them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.factories import baseline, epochs, exports, flight, kineto, logs, snapshot
from tests.factories.trace import header
from tests.factories.trace_files import write_run, write_trace

ROOT = Path(__file__).parents[2]

_CONFIG = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}'
_BUDGET = "operations_per_step: 40\nmay_be_unknown: [bytes_per_step]\n"


def set_up(folder: Path) -> Path:
    """Write all of it."""
    for name in ("dsprof-out", "dsprof-2", "before", "after", "early", "late", "found"):
        write_run(folder / name)
    for rank, file in enumerate(sorted((folder / "dsprof-out").iterdir())):
        write_trace(file, header(rank, 2), steps=1001)  # pages select step 1000
    epochs.write(folder / "restarted", epochs.Start(0, ends=(None, None)), epochs.Start(60))
    for host in ("host1", "host2"):
        (folder / host).mkdir()
    write_run(folder / "host1" / "dsprof-out", 1)
    write_run(folder / "host2" / "dsprof-out", 1)
    (folder / "examples").symlink_to(ROOT / "examples")
    for name in ("train.py", "pretrain_gpt.py"):
        (folder / name).touch()
    (folder / "ds_config.json").write_text(_CONFIG)
    (folder / "budget.yaml").write_text(_BUDGET)
    (folder / "dsprof.yaml").write_text("rules: {late-rank: {step_share: 0.1}}\n")
    for name in ("dsprof-baseline.json", "baseline.json", "cluster.json"):
        (folder / name).write_bytes(msgspec.json.encode(baseline.baseline()))
    _other_tools(folder)
    for inside in (".local/share/bash-completion/completions", ".config/fish/completions"):
        (folder / inside).mkdir(parents=True)
    return folder


def _other_tools(folder: Path) -> None:
    for name in ("profiles", "dumps"):
        (folder / name).mkdir()
    for rank in range(2):
        kineto.write(folder / f"profiles/rank{rank}.pt.trace.json", kineto.steps(4, 8, 4), rank)
        flight.write(folder / "dumps", rank, flight.document([flight.call(rank + 1)]))
    for name in ("memory.pickle", "memory.rank1.pickle"):
        snapshot.write(folder / name, [snapshot.segment(5, -3)])
    exports.nsys(folder / "nsys.sqlite", [("gemm", 0, 5), ("ncclDevKernel_AllReduce_Sum", 5, 2)])
    for name in ("train.log", "slurm-1234.out", "nccl_host_1.log"):
        (folder / name).write_text("\n".join(logs.run(logs.out_of_memory(), ranks=2)))
