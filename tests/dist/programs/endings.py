"""Lets processes end, fail and begin again in many ways, each without dsprof and with it.

OUT/endings.json: {scenario: {"bare" or "recorded": {"codes": [of each rank], "said": [stdout]}}};
the traces of a scenario are in OUT/<scenario>. All run in forks of this process, which has torch
but no dsprof: each ends as a script of its own would, with all that Python does at exit.
"""

import datetime
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from tests.dist.leaving import leave_group

PATIENCE_S = 2


def communicate(times: int = 3, group: dist.ProcessGroup | None = None) -> float:
    tensor = torch.ones(4)
    for _ in range(times):
        dist.all_reduce(tensor, group=group)
        dist.all_reduce(tensor, group=group, async_op=True).wait()
        tensor = tensor / 2 + 1
    return tensor.sum().item()


def join(store: Path, rank: int, ranks: int) -> None:
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(store), ranks), rank=rank, world_size=ranks
    )


# -- the end of the process -----------------------------------------------------------------------


def ends_by_itself(rank: int) -> None:
    print(communicate())


def leaves_the_group_first(rank: int) -> None:
    print(communicate())
    dist.destroy_process_group()


def exits(rank: int) -> None:
    print(communicate())
    sys.exit(3)


def exits_at_once(rank: int) -> None:
    print(communicate(), flush=True)
    os._exit(4)


def raises(rank: int) -> None:
    print(communicate())
    raise RuntimeError("of the user")


def is_interrupted(rank: int) -> None:
    print(communicate())
    signal.raise_signal(signal.SIGINT)


def is_interrupted_while_it_communicates(rank: int) -> None:
    signal.setitimer(signal.ITIMER_REAL, 2.0)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    while True:
        communicate()


def is_terminated(rank: int) -> None:
    print(communicate(), flush=True)
    signal.raise_signal(signal.SIGTERM)


def handles_termination(rank: int) -> None:
    def handler(number: int, frame: object) -> None:
        print(communicate())
        sys.exit(7)

    signal.signal(signal.SIGTERM, handler)
    signal.raise_signal(signal.SIGTERM)


# -- failures in collectives ----------------------------------------------------------------------


def makes_mistakes(rank: int) -> None:
    tensor, ints = torch.ones(4), torch.ones(4, dtype=torch.int32)
    for wrong in (
        lambda: dist.broadcast(tensor, 5),
        lambda: dist.all_gather([tensor[:2]], tensor),
        lambda: dist.all_gather_into_tensor(torch.ones(3), tensor),
        lambda: dist.reduce_scatter_tensor(ints, tensor),
        lambda: dist.all_reduce(tensor.to_sparse(), op=dist.ReduceOp.MAX),
        lambda: dist.all_reduce(torch.ones(2, device="meta")),
        lambda: dist.all_to_all_single(tensor, tensor, [1, 1], [4]),
        lambda: dist.send(tensor, 0),
    ):
        try:
            print("no mistake", wrong())
        except Exception as error:
            print(type(error).__name__, str(error).splitlines()[0])
    print(communicate())


def waits_in_vain(rank: int) -> None:
    """Rank 1 does not take part: one blocking call, one wait and a barrier run out of time."""
    tensor = torch.ones(4)
    if rank == 1:
        time.sleep(4 * PATIENCE_S)
        os._exit(0)
    # Not before: on a busy machine it takes ranks longer than that to meet.
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=PATIENCE_S))
    for late in (
        lambda: dist.all_reduce(tensor),
        lambda: dist.all_reduce(tensor, async_op=True).wait(),
        lambda: dist.monitored_barrier(timeout=datetime.timedelta(seconds=1)),
    ):
        try:
            print("in time", late())
        except Exception as error:
            print(type(error).__name__)
    os._exit(5)  # gloo's threads of a failed group may abort at exit, with dsprof or without


# -- threads and processes ------------------------------------------------------------------------


def communicates_from_threads(rank: int) -> None:
    groups = [dist.new_group([0]) for _ in range(4)]
    sums: list[float] = [0.0] * len(groups)

    def work(number: int) -> None:
        sums[number] = communicate(200, groups[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sums)


class Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient * 2


def communicates_from_autograd(rank: int) -> None:
    x = torch.ones(4, requires_grad=True)
    thread = threading.Thread(target=lambda: Reduced.apply(x).sum().backward())
    thread.start()
    thread.join()
    Reduced.apply(x).sum().backward()
    print(x.grad)


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index**2


def loads_data(method: str) -> Callable[[int], None]:
    def load(rank: int) -> None:
        print(communicate())
        loader = DataLoader(Squares(), num_workers=2, multiprocessing_context=method, timeout=120)
        print([batch.item() for batch in loader])
        print(communicate())

    return load


def starts_processes(rank: int) -> None:
    print(communicate())
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=sys.exit, args=(code,)) for code in (0, 9)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    print([child.exitcode for child in children], communicate())


def saves_in_a_process(rank: int) -> None:
    print(communicate())
    # As torch's asynchronous checkpoint does in a process of its own.
    print(start("saves", [rank]), communicate())


def starts_jobs(rank: int) -> None:
    """Start jobs, as a notebook does: two ranks, and a script that is rank 0 of 1."""
    print(communicate())
    print(start("job", [0, 1]))
    print(subprocess.run([sys.executable, "-c", _SCRIPT]).returncode, communicate())


_SCRIPT = """
import torch, torch.distributed as dist
from tests.dist.leaving import leave_group
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(4))
leave_group()
"""


def start(name: str, ranks: list[int]) -> list[int | None]:
    context, store = multiprocessing.get_context("spawn"), OUT / f"{name}.{os.environ['MODE']}"
    children = [context.Process(target=take_part, args=(store, rank, len(ranks))) for rank in ranks]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode for child in children]


def take_part(store: Path, rank: int, ranks: int) -> None:
    join(store, rank, ranks)
    communicate()
    leave_group()


# -- beginning again ------------------------------------------------------------------------------


def begins_again(rank: int) -> None:
    for attempt in range(3):
        print(communicate())
        dist.destroy_process_group()
        join(OUT / f"again{attempt}.{os.environ['MODE']}", rank, 2)
    print(communicate())
    dist.barrier()  # a gloo thread that lets go of a tensor while Python ends aborts the process


def begins_again_as_another(rank: int) -> None:
    """Two ranks change places, then rank 1 leaves and the other goes on alone."""
    print(communicate())
    dist.destroy_process_group()
    join(OUT / f"swapped.{os.environ['MODE']}", 1 - rank, 2)
    print(dist.get_rank(), communicate())
    dist.destroy_process_group()
    if rank == 1:
        join(OUT / f"alone.{os.environ['MODE']}", 0, 1)
        print(dist.get_world_size(), communicate())


# -- where the trace cannot be written ------------------------------------------------------------


def has_a_full_disk(rank: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    for _ in range(40):
        total = communicate(20)
        time.sleep(0.05)
    print(total)


def is_out_of_memory(rank: int) -> None:
    """The writer of the trace is, and only where there is one."""
    if "dsprof" in sys.modules:
        from dsprof.trace.writing.encode import Encoder

        def starved(*args: object) -> None:
            raise MemoryError

        Encoder.record = starved  # type: ignore[method-assign, assignment]
    print(communicate())
    time.sleep(0.6)
    print(communicate())


class Scenario(NamedTuple):
    run: Callable[[int], None]
    ranks: int = 1
    environment: dict[str, str] = {}  # noqa: RUF012 - a field of a tuple


SCENARIOS = {
    "ends_by_itself": Scenario(ends_by_itself),
    "leaves_the_group_first": Scenario(leaves_the_group_first),
    "exits": Scenario(exits),
    "exits_at_once": Scenario(exits_at_once),
    "raises": Scenario(raises),
    "is_interrupted": Scenario(is_interrupted),
    "is_interrupted_while_it_communicates": Scenario(is_interrupted_while_it_communicates),
    "is_terminated": Scenario(is_terminated),
    "handles_termination": Scenario(handles_termination),
    "makes_mistakes": Scenario(makes_mistakes),
    "waits_in_vain": Scenario(waits_in_vain, ranks=2),
    "communicates_from_threads": Scenario(communicates_from_threads),
    "communicates_from_autograd": Scenario(communicates_from_autograd),
    "loads_data_by_fork": Scenario(loads_data("fork")),
    "loads_data_by_spawn": Scenario(loads_data("spawn")),
    "starts_processes": Scenario(starts_processes),
    "saves_in_a_process": Scenario(saves_in_a_process),
    "starts_jobs": Scenario(starts_jobs),
    "begins_again": Scenario(begins_again, ranks=2),
    "begins_again_as_another": Scenario(begins_again_as_another, ranks=2),
    "has_a_full_disk": Scenario(has_a_full_disk),
    "is_out_of_memory": Scenario(is_out_of_memory),
    "has_a_read_only_folder": Scenario(ends_by_itself, environment={"DSPROF_OUT": "/proc/dsprof"}),
    "has_no_home": Scenario(ends_by_itself, environment={"HOME": "/proc/nobody"}),
}
OUT = Path(sys.argv[1] if sys.argv[1:] else ".").resolve()


def begin(name: str, mode: str, rank: int) -> None:
    """Become one rank of a scenario."""
    scenario = SCENARIOS[name]
    os.environ.update({"DSPROF_OUT": str(OUT / name), "MODE": mode, **scenario.environment})
    os.environ["DSPROF"] = "1" if mode == "recorded" else "0"
    file = os.open(said(name, mode, rank), os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(os.open(OUT / f"{name}.{mode}.{rank}.err", os.O_WRONLY | os.O_CREAT), 2)
    if mode == "recorded":
        from dsprof_autostart import autostart

        autostart()  # what torch does at the end of its import
    join(OUT / f"{name}.{mode}.store", rank, scenario.ranks)
    scenario.run(rank)
    sys.exit()


def said(name: str, mode: str, rank: int) -> Path:
    return OUT / f"{name}.{mode}.{rank}.out"


def main() -> None:
    # No function that catches anything is below a scenario: what it raises ends its process.
    wanted = sys.argv[2:] or list(SCENARIOS)
    found: dict[str, dict[str, dict[str, list[int | str]]]] = {}
    for name in wanted:
        for mode in ("bare", "recorded"):
            ranks = range(SCENARIOS[name].ranks)
            children = []
            for rank in ranks:
                child = os.fork()
                if not child:
                    begin(name, mode, rank)
                children.append(child)
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            texts = [said(name, mode, rank).read_text() for rank in ranks]
            found.setdefault(name, {})[mode] = {"codes": list(codes), "said": list(texts)}
    (OUT / "endings.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
