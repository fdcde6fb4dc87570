"""Trains one small model under many ZeRO settings in turn: counted by torch, or recorded.

With `--oracle`, torch's ExecutionTraceObserver counts the operations and their bytes, DeepSpeed's
own logger counts what was requested, and what a bucket holds is read as it is flushed; nothing of
dsprof is imported. Without it, each setting is one recording in a folder of its own.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import deepspeed
import torch.distributed as dist
from deepspeed.comm.comm import comms_logger
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Zero3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer as Zero12

from tests.dist.leaving import leave_group
from tests.dist.oracle import observed
from tests.dist.programs import small_zero
from tests.dist.zero_settings import ZeroSetting, zero_settings

WARMUP_STEPS = 2
COUNTED_STEPS = 3

FLUSHES = {Zero12: "reduce_ipg_grads", Zero3: f"_{Zero3.__name__}__reduce_and_partition_ipg_grads"}


def build(setting: ZeroSetting) -> deepspeed.DeepSpeedEngine:
    return small_zero.build(
        setting.stage,
        reduce_scatter=setting.reduce_scatter,
        use_multi_rank_bucket_allreduce=setting.multi_rank,
        overlap_comm=setting.overlap,
    )


def train(engine: deepspeed.DeepSpeedEngine, steps: int) -> None:
    list(small_zero.losses(engine, steps))


@contextmanager
def counted(path: Path) -> Iterator[None]:
    """Write what happens in the block to `path`.

    {"ops": {op: [calls, bytes]}, "requested": {op: calls}, "flushes": [[elements, cause]]}
    """
    scratch = path.with_suffix(".execution.json")
    with (
        logged_requests() as requested,
        watched_flushes() as flushes,
        observed(scratch, dist.get_world_size()) as operations,
    ):
        yield
    path.write_text(json.dumps({"ops": operations, "requested": requested, "flushes": flushes}))


@contextmanager
def logged_requests() -> Iterator[dict[str, int]]:
    """Fill a dictionary with the calls of each function of deepspeed.comm during the block."""
    calls: dict[str, int] = {}
    comms_logger.comms_dict = {}
    deepspeed.comm.configure(enabled=True, prof_all=True, verbose=False)
    yield calls
    deepspeed.comm.configure(enabled=False)
    for op, sizes in comms_logger.comms_dict.items():
        calls[op] = sum(entry[0] for entry in sizes.values())


@contextmanager
def watched_flushes() -> Iterator[list[tuple[int, str]]]:
    """Fill a list with elements and cause of each flush during the block that is not empty."""
    seen: list[tuple[int, str]] = []
    originals = {owner: vars(owner)[name] for owner, name in FLUSHES.items()}

    def watch(flush):
        def wrapper(self, *args, **kwargs):
            elements = sum(bucket.elements for bucket in self.ipg_buckets.values())
            if elements:
                seen.append((elements, cause_on_stack()))
            return flush(self, *args, **kwargs)

        return wrapper

    for owner, flush in originals.items():
        setattr(owner, FLUSHES[owner], watch(flush))
    yield seen
    for owner, flush in originals.items():
        setattr(owner, FLUSHES[owner], flush)


def cause_on_stack() -> str:
    frame = sys._getframe(2)
    while frame:
        if frame.f_code.co_name == "independent_gradient_partition_epilogue":
            return "end of backward"
        frame = frame.f_back
    return "full"


@contextmanager
def recorded(folder: Path) -> Iterator[None]:
    import dsprof

    dsprof.enable(out=str(folder))
    yield
    dsprof.disable()


def run(setting: ZeroSetting, out: Path, oracle: bool) -> None:
    counts = out / f"{setting}.rank{dist.get_rank()}.json"
    around: AbstractContextManager = nullcontext() if oracle else recorded(out / str(setting))
    with around:
        engine = build(setting)
        train(engine, WARMUP_STEPS)
        with counted(counts) if oracle else nullcontext():
            train(engine, COUNTED_STEPS)
        engine.destroy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    args = parser.parse_args()
    deepspeed.init_distributed(dist_backend="gloo")
    args.out.mkdir(parents=True, exist_ok=True)
    for setting in zero_settings(args.stages):
        run(setting, args.out, args.oracle)
    if args.oracle and "dsprof" in sys.modules:
        raise RuntimeError("the oracle must not share anything with dsprof")
    leave_group()


if __name__ == "__main__":
    main()
