"""What one recorded collective costs the thread that issues it, on the backend that sends nothing.

A call is an asynchronous all_reduce and its wait, with the call site 15 frames up. Prints JSON:
nanoseconds for the issue and for the wait, in the batch that other programs disturbed least.
"calls" are issued by Python, "functional" ones by C++. "cold" is "calls" with other memory read
before each one, as a step of training does between two calls.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import quantiles
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof

FRAMES = 15
CALLS = 2_000  # in a batch, a batch is what the clock measures
WARM_BATCHES = 5  # the recorder describes itself and its environment meanwhile
BATCHES = 5
ROUNDS = 8
MILLION = 1_000_000
COLD_CALLS = 250  # their lower quartile is taken
OTHER_MEMORY_BYTES = 48 << 20  # more than the caches of a core hold


# What is measured: issue and wait of an asynchronous collective, from Python and from C++.
METHOD = ("work = dist.all_reduce(tensor, async_op=True)", "work.wait()")
FUNCTIONAL = ("output = ops.all_reduce_(tensor, 'sum', group)", "ops.wait_tensor(output)")


def library_call(issue: str, wait: str) -> Callable[..., Any]:
    """Return a call below `FRAMES` frames, all of which look as if they were in torch.

    It returns nanoseconds: for the issue, for the wait.
    """
    body = f"""
    start = clock()
    {issue}
    issued = clock()
    {wait}
    return issued - start, clock() - issued"""
    scope: dict[str, Any] = {
        "dist": dist,
        "clock": time.perf_counter_ns,
        "ops": torch.ops._c10d_functional,
        "group": dist.group.WORLD.group_name,
    }
    for _ in range(FRAMES):
        code = compile(f"def frame(tensor): {body}", torch.__file__, "exec")
        exec(code, scope)  # noqa: S102  the only way to get a frame of a chosen file
        scope, body = {"call": scope["frame"]}, "return call(tensor)"
    call: Callable[..., Any] = scope["call"]
    return call


def batch_ns(call: Callable[..., Any], tensor: torch.Tensor) -> tuple[float, float]:
    """Time one call, issue and wait apart: means over a batch, which is a step."""
    issue_ns = wait_ns = 0
    for _ in range(CALLS):
        issue, wait = call(tensor)
        issue_ns += issue
        wait_ns += wait
    dsprof.step()
    return issue_ns / CALLS, wait_ns / CALLS


def least_disturbed(
    call: Callable[..., Any], tensor: torch.Tensor, variants: dict[str, Callable[..., Any]]
) -> dict[str, list[float]]:
    """Return the shortest mean time of a batch with each variant, of issue and wait."""
    result: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, variant in variants.items():
            with variant():
                batches = [batch_ns(call, tensor) for _ in range(WARM_BATCHES + BATCHES)]
                result[name] += batches[WARM_BATCHES:]
    return {
        name: [min(times) for times in zip(*batches, strict=True)]
        for name, batches in result.items()
    }


def cold_ns(call: Callable[..., Any], tensor: torch.Tensor) -> list[float]:
    """Time one call, issue and wait apart, that finds nothing of it in the caches."""
    other = torch.ones(OTHER_MEMORY_BYTES // 4)
    times = []
    for _ in range(COLD_CALLS):
        other.sum()
        times.append(call(tensor))
    return [quantiles(part, n=4)[0] for part in zip(*times, strict=True)]


def cpu_ns(work: Callable[..., Any]) -> int:
    """CPU time of this thread: what waiting for the GIL, which the writer takes, is not part of."""
    start = time.thread_time_ns()
    work()
    return time.thread_time_ns() - start


@contextlib.contextmanager
def bare_kernel() -> Iterator[None]:
    """A Python kernel that only passes on: what any interception in the dispatcher costs."""
    op = torch.ops.c10d.allreduce_.default
    redispatch = op._handle.redispatch_boxed
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    library = torch.library.Library("c10d", "IMPL")
    library.impl(
        "allreduce_", lambda keys, *args: redispatch(keys & below, *args), "BackendSelect",
        with_keyset=True,
    )  # fmt: skip
    yield
    library._destroy()


@contextlib.contextmanager
def recorded(
    interception: Literal["auto", "dispatcher", "native", "process_group"],
) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as out:
        dsprof.enable(out=out, interception=interception)
        yield
        dsprof.disable()


def main() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    call, tensor = library_call(*METHOD), torch.ones(1024)
    variants: dict[str, Callable[..., Any]] = {
        "plain": contextlib.nullcontext,
        "bare kernel": bare_kernel,
        "dispatcher": lambda: recorded("dispatcher"),
        "native": lambda: recorded("native"),
        "process_group": lambda: recorded("process_group"),
        "auto": lambda: recorded("auto"),
    }
    figures = {
        "calls": least_disturbed(call, tensor, variants),
        "functional": least_disturbed(library_call(*FUNCTIONAL), tensor, variants),
    }
    cold = {}
    for name, variant in variants.items():
        with variant():
            cold[name] = cold_ns(call, tensor)
    with recorded("dispatcher"):
        million = [cpu_ns(lambda: batch_ns(call, tensor)) for _ in range(MILLION // CALLS)]
    halves = {"first half": million[: len(million) // 2], "last half": million[len(million) // 2 :]}
    # The quartile: for seconds at a time the host gives all calls half the speed.
    ends = {name: quantiles(half, n=4)[0] for name, half in halves.items()}
    print(json.dumps({**figures, "cold": cold, "million": ends}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
