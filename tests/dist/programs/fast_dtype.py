"""Asks the demo for its dtype on each rank: as measured here, and where ranks measure otherwise.

Argument: a folder. Each rank writes dtype.rankN.json: {"bfloat16 is supported", "measured", ...}.
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from examples import deepspeed_zero
from tests.dist.leaving import leave_group

QUICK, SLOW = {torch.bfloat16: 1.0, torch.float32: 2.0}, {torch.bfloat16: 9.0, torch.float32: 3.0}
MACHINES = {"both quick": (QUICK, QUICK), "first slow": (SLOW, QUICK), "last slow": (QUICK, SLOW)}


def main() -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    found = {
        "bfloat16 is supported": torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        "measured": str(deepspeed_zero.fast_dtype()),
    }
    for name, times_ms in MACHINES.items():
        deepspeed_zero.multiplication_ms = times_ms[dist.get_rank()].get
        deepspeed_zero.fast_dtype.cache_clear()
        found[name] = str(deepspeed_zero.fast_dtype())
    (Path(sys.argv[1]) / f"dtype.rank{dist.get_rank()}.json").write_text(json.dumps(found))
    leave_group()


if __name__ == "__main__":
    main()
