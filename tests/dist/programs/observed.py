"""Runs a script as it is, and writes down what it did as torch sees it, sharing nothing with dsprof.

`observed.py SCRIPT OUT [--count]`: all losses go to OUT/losses.rankN.json as digests of their bits.
With `--count`, torch's ExecutionTraceObserver counts collectives and their bytes into
OUT/counts.rankN.json. The random state is set before, for scripts that leave it to chance.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ExecutionTraceObserver

SIZED_BY = {"_reduce_scatter_base_": 1, "alltoall_base_": 1, "alltoall_": 1}
"""The argument that holds the whole array; else the first."""


@contextmanager
def counted(path: Path) -> Iterator[None]:
    """Write calls and bytes of each c10d operation in the block: {op: [calls, bytes]}."""
    raw = path.with_suffix(".execution.json")
    observer = ExecutionTraceObserver().register_callback(str(raw))
    observer.start()
    yield
    observer.stop()
    observer.unregister_callback()
    total: dict[str, list[int]] = {}
    for node in json.loads(raw.read_text())["nodes"]:
        if node["name"].startswith("c10d::"):
            op = node["name"].removeprefix("c10d::")
            calls_bytes = total.setdefault(op, [0, 0])
            calls_bytes[0] += 1
            values = node["inputs"]["values"]
            calls_bytes[1] += 0 if op == "barrier" else nbytes(values[SIZED_BY.get(op, 0)])
    path.write_text(json.dumps(total))
    raw.unlink()


def nbytes(value: list[Any]) -> int:
    """Bytes of a tensor, [id, storage, offset, elements, item bytes, device], or a list of them."""
    if value and isinstance(value[0], list):
        return sum(map(nbytes, value))
    return value[3] * value[4]


@contextmanager
def watched_losses(path: Path) -> Iterator[None]:
    """Write a digest of every tensor on which `backward` is called."""
    digests: list[str] = []
    backward = torch.Tensor.backward

    def watched(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        digests.append(hashlib.sha256(self.detach().double().numpy().tobytes()).hexdigest()[:16])
        backward(self, *args, **kwargs)

    torch.Tensor.backward = watched
    yield
    torch.Tensor.backward = backward
    path.write_text(json.dumps(digests))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    end = f"rank{os.environ['RANK']}.json"
    sys.path.insert(0, str(args.script.parent))
    sys.argv = [str(args.script)]
    torch.manual_seed(20)
    counting = counted(args.out / f"counts.{end}") if args.count else nullcontext()
    with watched_losses(args.out / f"losses.{end}"), counting:
        runpy.run_path(str(args.script), run_name="__main__")
    if args.count and "dsprof" in sys.modules:
        raise RuntimeError("the oracle must not share anything with dsprof")


if __name__ == "__main__":
    main()
