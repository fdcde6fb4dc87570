"""Trains the demo's model with one recorder after another, in turn; rank 0 writes what each cost.

Run by benchmarks/overhead.py: all variants share one process, one engine and the same minutes, so
that a busy machine disturbs all of them alike.
"""

import argparse
import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.comm.comm import comms_logger, timers

import dsprof
from examples.deepspeed_zero import (
    LanguageModel,
    fast_dtype,
    sample,
    standard_library,
    zero_config,
)
from tests.dist.leaving import leave_group


class Scale(NamedTuple):
    """How large a model is. With the same layers the collectives are the same, too."""

    layers: int
    width: int
    context: int
    batch: int
    warm_steps: int  # a recorder starts up meanwhile
    steps: int


SCALES = {
    "demo": Scale(layers=6, width=256, context=256, batch=4, warm_steps=3, steps=4),
    "half": Scale(layers=3, width=256, context=192, batch=3, warm_steps=6, steps=4),
    # The jitter of the half model's CPU time hides a millisecond of recording; here it shows.
    "small": Scale(layers=3, width=64, context=16, batch=1, warm_steps=15, steps=25),
}

COMPARED = ("half", "small")


@contextlib.contextmanager
def dsprof_on(**options: Any) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as out:
        dsprof.enable(out=out, **options)
        yield
        dsprof.disable()


@contextlib.contextmanager
def comms_logger_on() -> Iterator[None]:
    deepspeed.comm.configure(enabled=True, prof_all=True, verbose=False)
    yield
    deepspeed.comm.configure(enabled=False)
    comms_logger.comms_dict = {}
    timers.timers.clear()  # or each of its calls would cost more than the one before


def torch_profiler() -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


VARIANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "bare": nullcontext,
    "bare again": nullcontext,
    "dsprof": dsprof_on,
    "dsprof, interception: dispatcher": lambda: dsprof_on(interception="dispatcher"),
    "dsprof, interception: native": lambda: dsprof_on(interception="native"),
    "DeepSpeed comms_logger": comms_logger_on,
    "torch.profiler": torch_profiler,
}


def writer_cpu_ns() -> int:
    """CPU time of dsprof's thread so far; 0 where there is none."""
    threads = [thread for thread in threading.enumerate() if thread.name == "dsprof-writer"]
    clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident]
    return sum(map(time.clock_gettime_ns, clocks))


Loss = Callable[[], torch.Tensor]
Step = Callable[[], None]


def zero_step(stage: int, scale: Scale) -> tuple[Step, Step]:
    """Return what trains one optimizer step under DeepSpeed, and what ends the training."""
    config = zero_config(argparse.Namespace(stage=stage, batch=scale.batch), fast_dtype())
    config["zero_optimization"]["reduce_bucket_size"] = 15 * scale.width**2
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 3 * scale.width**2 // 2
    engine, *_ = deepspeed.initialize(model=make_model(scale), config=config)
    loss = losses(engine, scale)

    def step() -> None:
        for _ in range(engine.gradient_accumulation_steps()):
            engine.backward(loss())
            engine.step()

    return step, engine.destroy


def ddp_step(scale: Scale) -> tuple[Step, Step]:
    """Return the same for DDP."""
    model = torch.nn.parallel.DistributedDataParallel(make_model(scale).to(fast_dtype()))
    return torch_step(model, losses(model, scale), model.no_sync), lambda: None


def fsdp_step(scale: Scale) -> tuple[Step, Step]:
    """Return the same for FSDP2, a unit for each block."""
    from torch.distributed.fsdp import fully_shard  # from then on collectives may come from C++

    model = make_model(scale).to(fast_dtype())
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return torch_step(model, losses(model, scale), nullcontext), lambda: None


def torch_step(
    model: torch.nn.Module, loss: Loss, accumulate: Callable[[], AbstractContextManager[Any]]
) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        with accumulate():
            loss().backward()
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def make_model(scale: Scale) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(scale.width, scale.layers, scale.width // 64, scale.context, tied=True)


def losses(model: torch.nn.Module, scale: Scale) -> Loss:
    """Return what computes the loss of the next batch."""
    text, generator = standard_library(), torch.Generator().manual_seed(dist.get_rank())
    return lambda: model(sample(text, scale.batch, scale.context, generator))


TRAININGS: dict[str, Callable[[Scale], tuple[Step, Step]]] = {
    "ZeRO-2": partial(zero_step, 2),
    "ZeRO-3": partial(zero_step, 3),
    "DDP": ddp_step,
    "FSDP2": fsdp_step,
}


def measure(step: Step, scale: Scale, recorder: AbstractContextManager[Any]) -> dict[str, float]:
    """Return milliseconds a step under `recorder`: wall, CPU of this thread, CPU of the writer."""
    with recorder:
        for _ in range(scale.warm_steps):
            step()
        clocks = (time.perf_counter_ns, time.thread_time_ns, writer_cpu_ns)
        before = [clock() for clock in clocks]
        for _ in range(scale.steps):
            step()
        spent = [clock() - start for clock, start in zip(clocks, before, strict=True)]
    names = ("wall_ms", "thread_ms", "writer_ms")
    return {name: ns / scale.steps / 1e6 for name, ns in zip(names, spent, strict=True)}


def run(training: str, scale: Scale, count: int) -> dict[str, list[dict[str, float]]]:
    """Return what `measure` says of each variant, round after round."""
    step, end = TRAININGS[training](scale)
    rounds: dict[str, list[Any]] = {name: [] for name in VARIANTS}
    if not training.startswith("ZeRO"):
        del rounds["DeepSpeed comms_logger"]
    names = list(rounds)
    for _ in range(count):
        for name in names:
            rounds[name].append(measure(step, scale, VARIANTS[name]()))
        names.append(names.pop(0))
    end()
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("training", choices=TRAININGS)
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    deepspeed.init_distributed(dist_backend="gloo")
    result = {name: run(args.training, SCALES[name], args.rounds) for name in COMPARED}
    if dist.get_rank() == 0:
        args.out.write_text(json.dumps(result))
    leave_group()


if __name__ == "__main__":
    main()
