"""Rank 1 comes late to everything; rank 0 times its own waits. Each scenario has its own group.

OUT/truth.json, by rank 0: {scenario: [ns that its own clock saw around each wait]}; for DDP also
what torch's own reducer measured, and for "completion" what a thread that asked every millisecond
saw: [ask that found it pending, ask that found it done]. "head_starts" has {scenario: [ns that it
slept before each wait]}.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import dsprof
from tests.dist.leaving import leave_group

LATE_S = 0.12
HEAD_START_S, LONG_HEAD_START_S = 0.01, 0.07
REPETITIONS = 3
clock = time.perf_counter_ns

SCENARIOS: dict[str, Callable[["Scenario"], None]] = {}


class Scenario:
    """One repetition of a scenario on this rank."""

    def __init__(self, name: str, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank()
        self.truth: list = []
        self.head_starts_ns: list[int] = []
        self.late_s = 0.0 if self.rank == 0 else LATE_S

    def arrive(self) -> None:
        """Be late on rank 1."""
        time.sleep(self.late_s)

    @contextmanager
    def timed(self) -> Iterator[None]:
        start = clock()
        yield
        self.truth.append(clock() - start)

    def wait(self, wait: Callable[[], object], head_start_s: float = HEAD_START_S) -> None:
        """Compute (that is: sleep) a little, then wait."""
        start = clock()
        time.sleep(head_start_s)
        self.head_starts_ns.append(clock() - start)
        with self.timed():
            wait()


def scenario(function: Callable[[Scenario], None]) -> Callable[[Scenario], None]:
    SCENARIOS[function.__name__] = function
    return function


def ones(elements: int = 16) -> torch.Tensor:
    return torch.ones(elements)


@scenario
def sync(run: Scenario) -> None:
    run.arrive()
    with run.timed():
        dist.all_reduce(ones(), group=run.group)


@scenario
def async_(run: Scenario) -> None:
    run.arrive()
    run.wait(dist.all_reduce(ones(), group=run.group, async_op=True).wait)


@scenario
def async_waited_later(run: Scenario) -> None:
    run.arrive()
    run.wait(dist.all_reduce(ones(), group=run.group, async_op=True).wait, LONG_HEAD_START_S)


@scenario
def async_waited_twice(run: Scenario) -> None:
    run.arrive()
    work = dist.all_reduce(ones(), group=run.group, async_op=True)
    run.wait(work.wait)
    work.wait()


@scenario
def in_another_thread(run: Scenario) -> None:
    run.arrive()
    work = dist.all_reduce(ones(), group=run.group, async_op=True)
    thread = threading.Thread(target=run.wait, args=[work.wait])
    thread.start()
    thread.join()


@scenario
def never_waited(run: Scenario) -> None:
    run.arrive()
    dist.all_reduce(ones(), group=run.group, async_op=True)
    run.truth.append(0)
    time.sleep(LATE_S - run.late_s + 0.05)


@scenario
def coalesced(run: Scenario) -> None:
    run.arrive()
    with dist._coalescing_manager(run.group, async_ops=True) as manager:
        dist.all_reduce(ones(), group=run.group)
        dist.all_reduce(ones(), group=run.group)
    run.wait(manager.wait)


@scenario
def point_to_point(run: Scenario) -> None:
    run.arrive()
    transfer = dist.isend if run.rank else dist.irecv
    run.wait(transfer(ones(), 1 - run.rank, group=run.group).wait)


@scenario
def sync_point_to_point(run: Scenario) -> None:
    run.arrive()
    transfer = dist.send if run.rank else dist.recv
    with run.timed():
        transfer(ones(), 1 - run.rank, group=run.group)


@scenario
def batch_of_point_to_point(run: Scenario) -> None:
    run.arrive()
    both = [dist.P2POp(op, ones(), 1 - run.rank, run.group) for op in (dist.isend, dist.irecv)]
    works = dist.batch_isend_irecv(both)
    run.wait(lambda: [work.wait() for work in works])


@scenario
def functional_all_reduce(run: Scenario) -> None:
    run.arrive()
    run.wait(functional.all_reduce(ones(), "sum", run.group).wait)


@scenario
def functional_reduce_scatter(run: Scenario) -> None:
    run.arrive()
    run.wait(functional.reduce_scatter_tensor(ones(), "sum", 0, run.group).wait)


@scenario
def functional_all_to_all(run: Scenario) -> None:
    run.arrive()
    run.wait(functional.all_to_all_single(ones(), None, None, run.group).wait)


@scenario
def functional_view(run: Scenario) -> None:
    """The wait is for a view that begins in the middle of what the collective wrote."""
    run.arrive()
    half = functional.all_gather_tensor(ones(), 0, run.group).view(2, 16)[1]
    run.wait(lambda: half + 1)


@scenario
def functional_coalesced(run: Scenario) -> None:
    """One Work for two outputs, the last of which is waited for first."""
    run.arrive()
    outputs = functional.all_gather_into_tensor_coalesced([ones(), ones()], run.group)
    run.wait(lambda: [output.wait() for output in reversed(outputs)])


@scenario
def functional_in_another_thread(run: Scenario) -> None:
    run.arrive()
    output = functional.all_reduce(ones(), "sum", run.group)
    thread = threading.Thread(target=run.wait, args=[output.wait])
    thread.start()
    thread.join()


@scenario
def functional_complete_before(run: Scenario) -> None:
    """Hooks see the collective complete before it is waited for."""
    run.arrive()
    output = functional.all_reduce(ones(), "sum", run.group)
    time.sleep(2 * LATE_S)
    dist.barrier(group=ALONE)
    with run.timed():
        output.wait()


@scenario
def functional_compiled(run: Scenario) -> None:
    run.arrive()
    with run.timed():
        COMPILED(ones(), run.group)


@scenario
def completion(run: Scenario) -> None:
    """True completion, beside hook calls every 10 ms (barriers of a group of one)."""
    run.arrive()
    work = dist.all_reduce(ones(), group=run.group, async_op=True)
    seen = [clock(), 0]

    def ask() -> None:
        while not work.is_completed():
            seen[0] = clock()
            time.sleep(0.001)
        seen[1] = clock()

    thread = threading.Thread(target=ask)
    thread.start()
    hooks = []
    while not seen[1] or len(hooks) < 2 or hooks[-1][0] < seen[1]:
        start = clock()
        dist.barrier(group=ALONE)
        hooks.append([start, clock()])
        time.sleep(0.01)
    thread.join()
    work.wait()
    run.truth.append({"seen": seen, "hooks": hooks})


class SlowBackward(torch.autograd.Function):
    """Makes this rank's last gradient late."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class Model(torch.nn.Module):
    def __init__(self, late_s: float) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        self.register_buffer("buffer", torch.zeros(4))
        self.late_s = late_s

    def forward(self, x):
        return self.second(SlowBackward.apply(self.first(x), self.late_s))


def ddp(run: Scenario, **options) -> None:
    """DDP with two buckets: rank 1 is late with the gradients of the second one."""
    model = DistributedDataParallel(
        Model(run.late_s), process_group=run.group, bucket_cap_mb=0.001, **options
    )
    model._set_ddp_runtime_logging_sample_rate(1)
    ready = []
    last = model.module.first.weight
    last.register_post_accumulate_grad_hook(lambda _: ready.append(clock()))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    own, torchs = [], []
    for _ in range(2 * REPETITIONS + 2):
        dist.barrier(group=run.group)
        loss = model(torch.ones(8, 64)).sum()
        log = model._get_ddp_logging_data()  # of the pass before
        overlapped = log.get("backward_compute_comm_overlap_time", 0)
        torchs.append(log.get("backward_comm_time", 0) - overlapped)
        ready.clear()
        loss.backward()
        own.append(clock() - ready[-1])
        optimizer.step()
    run.truth += [{"own": o, "torch": t} for o, t in zip(own, torchs[1:], strict=False)]


@scenario
def ddp_plain(run: Scenario) -> None:
    ddp(run)


@scenario
def ddp_bucket_view(run: Scenario) -> None:
    ddp(run, gradient_as_bucket_view=True)


@scenario
def ddp_unused(run: Scenario) -> None:
    ddp(run, find_unused_parameters=True)


@scenario
def ddp_static_graph(run: Scenario) -> None:
    ddp(run, static_graph=True)


def main() -> None:
    global ALONE, COMPILED
    out = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    control = dist.new_group(group_desc="control")
    ALONE = [dist.new_group([r], group_desc="alone") for r in range(2)][rank]
    groups = {name: dist.new_group(group_desc=name) for name in SCENARIOS}
    dsprof.enable(out=str(out / "trace"))

    def reduced(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", group) + 1

    COMPILED = torch.compile(reduced, backend="aot_eager", fullgraph=True)
    truth: dict = {"head_starts": {}}
    for name, play in SCENARIOS.items():
        run = Scenario(name, groups[name])
        truth[name], truth["head_starts"][name] = run.truth, run.head_starts_ns
        for _ in range(1 if name.startswith("ddp") else REPETITIONS):
            dist.barrier(group=control)
            play(run)
        dsprof.step()
    if rank == 0:
        (out / "truth.json").write_text(json.dumps(truth))
    dsprof.disable()
    leave_group()


if __name__ == "__main__":
    main()
