"""Runs a script as it is and writes down what torch alone says of it.

`observed.py SCRIPT OUT [--count]`: a digest of every tensor that `backward` is called on goes to
OUT/losses.rankN.json. With `--count`, the oracle's counts go to OUT/counts.rankN.json, and nothing
of dsprof may be imported. The random state is set before, for scripts that leave it to chance.
"""

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

from tests.dist.oracle import observed


@contextmanager
def watched_losses() -> Iterator[list[str]]:
    """Fill a list with digests of the tensors on which `backward` is called in the block."""
    digests: list[str] = []
    backward = torch.Tensor.backward

    def watched(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        digests.append(hashlib.sha256(self.detach().double().numpy().tobytes()).hexdigest()[:16])
        backward(self, *args, **kwargs)

    torch.Tensor.backward = watched
    yield digests
    torch.Tensor.backward = backward


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
    scratch = args.out / f"execution.{end}"
    counting = observed(scratch, int(os.environ["WORLD_SIZE"])) if args.count else nullcontext({})
    with watched_losses() as losses, counting as counts:
        runpy.run_path(str(args.script), run_name="__main__")
    if args.count and "dsprof" in sys.modules:
        raise RuntimeError("the oracle must not share anything with dsprof")
    (args.out / f"losses.{end}").write_text(json.dumps(losses))
    (args.out / f"counts.{end}").write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
