"""ZeRO with overlap_comm on the device, with dsprof and without: OUT STAGE; writes the losses."""

import json
import sys
from pathlib import Path

import deepspeed

import dsprof
from tests.dist.programs import small_zero


def main(out: Path, stage: int) -> None:
    deepspeed.init_distributed()
    found = {}
    for name in ("bare", "recorded"):
        engine = small_zero.build(stage, overlap_comm=True)
        if name == "recorded":
            dsprof.enable(out=str(out / "trace"))
        found[name] = list(small_zero.losses(engine, 8))
        engine.destroy()
    dsprof.disable()
    (out / "losses.json").write_text(json.dumps(found))


main(Path(sys.argv[1]), int(sys.argv[2]))
