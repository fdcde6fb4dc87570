"""Trains at every ZeRO stage without and with dsprof; writes all losses, bit by bit."""

import json
import sys
from pathlib import Path

import deepspeed
import torch.distributed as dist

import dsprof
from tests.dist.programs import small_zero

STEPS = 8


def exact_losses(stage: int) -> list[str]:
    engine = small_zero.build(stage)
    try:
        return [loss.hex() for loss in small_zero.losses(engine, STEPS)]
    finally:
        engine.destroy()


def main() -> None:
    out = Path(sys.argv[1])
    deepspeed.init_distributed(dist_backend="gloo")
    result = {}
    for stage in range(4):
        bare = exact_losses(stage)
        dsprof.enable(out=str(out / f"stage{stage}"))
        recorded = exact_losses(stage)
        dsprof.disable()
        result[stage] = {"bare": bare, "recorded": recorded}
    (out / f"losses.rank{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
