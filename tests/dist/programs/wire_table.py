"""Runs each row of a table of ways to communicate: counted by torch, or recorded by dsprof.

With `--oracle` nothing of dsprof is imported. Without it, each row is a recording in a folder of
its own, once with each way to intercept.
"""

import argparse
import json
import os
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch.distributed as dist

from tests.dist.leaving import leave_group
from tests.dist.oracle import observed, profiled_gloo
from tests.dist.programs import wire_rows

WITHOUT_KERNELS = "auto, in Python"  # as where `dsprof build` was not run
INTERCEPTIONS = (WITHOUT_KERNELS, "auto", "dispatcher", "native", "process_group")
GROUP_SIZE = 2  # of every group in every table
BELOW_THE_DISPATCHER = ("backend_methods",)


def count(name: str, row: wire_rows.Row, out: Path) -> None:
    path = out / f"{name}.rank{dist.get_rank()}.json"
    counting: AbstractContextManager = (
        profiled_gloo(GROUP_SIZE)
        if name in BELOW_THE_DISPATCHER
        else observed(path.with_suffix(".execution.json"), GROUP_SIZE)
    )
    with counting as counts:
        row()
    path.write_text(json.dumps(counts))


@contextmanager
def nothing_built(folder: Path):
    built = os.environ["TORCH_EXTENSIONS_DIR"]
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    yield
    os.environ["TORCH_EXTENSIONS_DIR"] = built


@contextmanager
def recorded(folder: Path, interception: str):
    import dsprof

    with nothing_built(folder) if interception == WITHOUT_KERNELS else nullcontext():
        dsprof.enable(out=str(folder), interception=interception.partition(",")[0])
    yield
    dsprof.disable()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("table", choices=["ROWS", "COMPILED", "MESH"])
    parser.add_argument("--oracle", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    args.out.mkdir(parents=True, exist_ok=True)
    for name, row in getattr(wire_rows, args.table).items():
        dist.barrier()
        if args.oracle:
            count(name, row, args.out)
            continue
        for interception in INTERCEPTIONS:
            with recorded(args.out / interception / name, interception):
                row()
    if args.oracle and "dsprof" in sys.modules:
        raise RuntimeError("the oracle must not share anything with dsprof")
    leave_group()


if __name__ == "__main__":
    main()
