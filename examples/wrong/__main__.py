"""Trains with one of the mistakes, or without it; nothing here knows of dsprof.

    DSPROF=1 python -m torch.distributed.run --standalone --nproc-per-node 2 \
        -m examples.wrong tiny_buckets
    dsprof report dsprof-out

`--patch '{"zero_optimization": ...}'` merges what a finding says into the DeepSpeed configuration;
`--patch '{}'` makes the change of the code that it names. `make savings` does both and compares.
"""

import argparse
import json

import torch.distributed as dist

from examples.wrong.cases import CASES
from examples.wrong.training import Patch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--patch", type=json.loads, help="what to change, as JSON; {} for code")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args.case, args.steps, args.patch)
    dist.barrier()  # as in examples/deepspeed_zero.py
    dist.destroy_process_group()


def train(case: str, steps: int, patch: Patch | None) -> None:
    """Train with a model that is gone before its process group is, as in examples/ddp.py."""
    step = CASES[case].make(case, patch)
    for _ in range(steps):
        step()


if __name__ == "__main__":
    main()
