"""Runs a script as it is and writes down what torch alone says of it.

`observed.py SCRIPT OUT [--count] [ARGUMENTS OF THE SCRIPT]`: digests of every tensor that
`backward` is called on, and of gradients and weights at each step, go to OUT/training.rankN.json.
With `--count`, the oracle's counts go to OUT/counts.rankN.json, and nothing of dsprof may be
imported. The random state is set before, for scripts that leave it to chance.
"""

import argparse
import json
import os
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

from tests.dist.leaving import wait_for_threads
from tests.dist.oracle import observed
from tests.dist.programs.digests import watched_training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", action="store_true")
    args, given = parser.parse_known_args()
    args.out.mkdir(parents=True, exist_ok=True)
    end = f"rank{os.environ['RANK']}.json"
    sys.path.insert(0, str(args.script.parent))
    sys.argv = [str(args.script), *given]
    torch.manual_seed(20)
    scratch = args.out / f"execution.{end}"
    counting = observed(scratch, int(os.environ["WORLD_SIZE"])) if args.count else nullcontext({})
    with watched_training() as digests, counting as counts:
        runpy.run_path(str(args.script), run_name="__main__")
    wait_for_threads()  # which the barrier at the end of a script does not always do
    if args.count and "dsprof" in sys.modules:
        raise RuntimeError("the oracle must not share anything with dsprof")
    (args.out / f"training.{end}").write_text(json.dumps(digests))
    (args.out / f"counts.{end}").write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
