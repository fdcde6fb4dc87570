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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--patch", type=json.loads, help="what to change, as JSON; {} for code")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    step = CASES[args.case].make(args.case, args.patch)
    for _ in range(args.steps):
        step()
    dist.barrier()  # as in examples/deepspeed_zero.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
