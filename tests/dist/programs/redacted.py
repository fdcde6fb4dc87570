"""Records ranks whose secrets differ; writes the key of the run to a file.

redacted.py OUT KEY_FILE SECRET: of rank 1 it is the value of a variable and of a DeepSpeed key.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

import dsprof
import dsprof.recording.session
from dsprof.recording.recorder import shared_key
from dsprof.trace.schema import EngineConfig
from tests.dist.leaving import leave_group

# On a busy machine the store answers later than dsprof waits for it, and no rank is compared.
shared_key._PATIENCE_S = 60.0


def main() -> None:
    out, key_file, secret = sys.argv[1:]
    if os.environ["RANK"] == "1":
        os.environ["NCCL_NET_PLUGIN"] = secret
    dsprof.enable(out=out, interception="process_group")
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    config = {"train_batch_size": os.environ["NCCL_NET_PLUGIN"], "registry": [secret]}
    session = dsprof.recording.session.current()
    assert session is not None
    session.recorder.outbox.define(EngineConfig(1, config, effective=config))
    store = _get_default_store()
    if dist.get_rank() == 0:
        Path(key_file).write_bytes(store.get("dsprof/key"))
    leave_group()
    dsprof.disable()


main()
