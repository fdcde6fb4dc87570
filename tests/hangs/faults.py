"""What goes wrong on the culprit, where the other ranks communicate."""

from __future__ import annotations

import ctypes
import datetime
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import torch
import torch.distributed as dist

from tests.hangs.machine import mount_what_hangs
from tests.hangs.rank import Rank

Program = Callable[[Rank], None]

_FOREVER_S = 10_000


def instead(of_call: Program) -> Program:
    """The culprit does `of_call` where the others communicate, and then goes on as they do."""

    def program(rank: Rank) -> None:
        if rank.is_culprit:
            rank.stalls()
            of_call(rank)
        else:
            rank.call()
        rank.call("all_reduce", "world", elements=8)
        rank.call("all_gather_into_tensor", "world", elements=4)

    return program


# -- instead of the call, something else, or nothing ---------------------------------------------


def call_other_op(rank: Rank) -> None:
    gather = "all_gather_into_tensor"
    rank.call(gather, elements=16) if rank.draw.op != gather else rank.call("all_reduce")


def raise_and_go_on(rank: Rank) -> None:
    with suppress(ValueError):
        raise ValueError("a bad sample")


def raise_error(_: Rank) -> None:
    raise ValueError("a bad sample")


def run_out_of_memory(_: Rank) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
    fill_memory(_)


def fill_memory(_: Rank) -> None:
    kept = []
    while True:
        kept.append(bytearray(b"1") * (1 << 27))


def sleep_forever(_: Rank) -> None:
    """Sleep in Python, as a retry loop does."""
    time.sleep(_FOREVER_S)


def hold_interpreter(_: Rank) -> None:
    """Sleep in C without giving the interpreter lock back."""
    ctypes.PyDLL(None).sleep(_FOREVER_S)


def hang_at_end(rank: Rank) -> None:
    """Hang when all have left the process group, as a destructor of DDP may over gloo."""
    dist.barrier()
    dist.destroy_process_group()
    if rank.is_culprit:
        rank.stalls()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # no signal ends a deadlock
        hold_interpreter(rank)
    sys.exit()


def match_forever(_: Rank) -> None:
    """Compute in C without giving the interpreter lock back."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def spin(_: Rank) -> None:
    """Compute in Python, in a loop that does not end."""
    while True:
        pass


def wait_for_lock(_: Rank) -> None:
    """Wait for a lock that another thread holds and never gives back."""
    lock = threading.Lock()
    is_held = threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    is_held.wait()
    lock.acquire()


def wait_for_store(_: Rank) -> None:
    """Wait for a key that no rank sets."""
    store = dist.distributed_c10d._get_default_store()
    store.wait(["never"], datetime.timedelta(seconds=_FOREVER_S))


def call_another_new_group(rank: Rank) -> None:
    """Create a group, where the other ranks train."""
    dist.new_group([*range(rank.draw.ranks)])


def wait_for_child(_: Rank) -> None:
    """Wait for a program that ends only when this process has ended."""
    subprocess.Popen(["cat"], stdin=subprocess.PIPE).wait()


def wait_for_worker(rank: Rank) -> None:
    from torch.utils.data import DataLoader, Dataset

    class Stuck(Dataset[int]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            sleep_forever(rank)
            return index

    next(iter(DataLoader(Stuck(), num_workers=1, multiprocessing_context="fork")))


def read_pipe(rank: Rank) -> None:
    path = rank.folder / "mounted-folder-data.bin"
    os.mkfifo(path)
    with open(path, "rb") as never_written:
        never_written.read()


def save_to_pipe(rank: Rank) -> None:
    """Save a checkpoint where nobody takes the bytes, as at a file server that is gone."""
    path = rank.folder / "mounted-folder-model.pt"
    os.mkfifo(path)
    with open(os.open(path, os.O_RDWR), "wb") as never_read:
        torch.save(torch.ones(1 << 20), never_read)


def read_fuse(rank: Rank) -> None:
    with open(mount_what_hangs(rank.folder) / "data.bin", "rb") as never_opened:
        never_opened.read()


# -- the whole program of all ranks ----------------------------------------------------------------


def other_order(rank: Rank) -> None:
    groups = ["second", "third"]
    if rank.is_culprit:
        rank.stalls()
        groups.reverse()
    for group in groups:
        rank.call("all_reduce", group)


def other_root(rank: Rank) -> None:
    others = (rank.draw.culprit + 1) % rank.draw.ranks
    if rank.is_culprit:
        rank.stalls()
    dist.broadcast(torch.ones(64), src=rank.draw.culprit if rank.is_culprit else others)
    rank.call("all_reduce", "world", elements=8)


def monitored_barrier(rank: Rank) -> None:
    """Half of the ranks meet in a barrier that gloo watches, and the others go on."""
    if rank.is_culprit:
        rank.stalls()
        sleep_forever(rank)
    if rank.rank in rank.draw.part:
        dist.monitored_barrier(rank.groups["part"])
    rank.call("all_reduce", "world", elements=8)


def crossed_pipeline(rank: Rank) -> None:
    """The culprit and its neighbour both receive before they send."""
    peers = sorted([rank.draw.culprit, (rank.draw.culprit + 1) % rank.draw.ranks])
    if rank.rank in peers:
        rank.stalls()
        other = peers[rank.rank == peers[0]]
        dist.recv(torch.ones(16), other)
        dist.send(torch.ones(16), other)
    rank.call("all_reduce", "world")


def ends_epoch_early(rank: Rank) -> None:
    for batch in range(6):
        if rank.is_culprit and batch == 4:
            rank.stalls()
            return
        rank.call("all_reduce", "world", elements=1000)


def only_on_one(rank: Rank) -> None:
    """`if rank == n:` around a collective: the others are in the next one."""
    if rank.is_culprit:
        rank.stalls()
        rank.call("all_gather_into_tensor", "world", elements=256)
    rank.call("all_reduce", "world", elements=8)


def lose_network(rank: Rank) -> None:
    if rank.is_culprit:
        rank.stalls()
    for _ in range(1_000_000):  # until the network fails
        rank.call("all_reduce", "world", elements=1 << 18)


def create_group_late(rank: Rank) -> None:
    if rank.is_culprit:
        rank.stalls()
        sleep_forever(rank)
    dist.new_group(list(range(rank.draw.ranks)), group_desc="late")


def lose_store(rank: Rank, *, how: str) -> None:
    if rank.is_culprit:
        rank.stalls()
        (rank.folder / f"{how}-store").touch()
    while not (rank.folder / "store-ended").exists():
        time.sleep(0.05)
    dist.new_group(list(range(rank.draw.ranks)), group_desc="late")
    rank.call("all_reduce", "world")


def route_tokens(rank: Rank) -> None:
    """Experts on all ranks: whoever was sent no token sends none back, and the others wait."""
    ranks = rank.draw.ranks
    for step in range(3):
        is_bad = step == 2
        if is_bad and rank.is_culprit:
            rank.stalls()
        sent = torch.tensor(
            [4 * (not is_bad or peer != rank.draw.culprit) for peer in range(ranks)]
        )
        counts = torch.empty_like(sent)
        dist.all_to_all_single(counts, sent)
        tokens = torch.empty(int(counts.sum()), 8)
        splits = counts.tolist(), sent.tolist()
        dist.all_to_all_single(tokens, torch.ones(int(sent.sum()), 8), *splits)
        if len(tokens):
            back = torch.empty(int(sent.sum()), 8)
            dist.all_to_all_single(back, tokens, *reversed(splits))
        rank.call("all_reduce", "world")


def train_zero3(rank: Rank, *, fault: str) -> None:
    """Train under ZeRO-3, where each forward gathers what it uses; then one rank uses less."""
    import deepspeed
    from torch import nn

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, 64)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(64, width), nn.Linear(width, 64)) for width in (32, 96)
            )

        def forward(self, x: torch.Tensor, used: list[int]) -> torch.Tensor:
            x = self.first(x)
            for index in used:
                x = self.experts[index](x)
            return x

    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine, *_ = deepspeed.initialize(model=Routed(), config=config)

    def train(used: list[int]) -> None:
        engine.backward(engine(torch.ones(4, 64), used).square().mean())
        engine.step()

    for _ in range(rank.draw.calls):
        train([0, 1])
    if rank.is_culprit:
        rank.stalls()
        if fault == "checkpoint":
            engine._zero3_consolidated_16bit_state_dict()
        train([1] if fault == "branch" else [])
    for _ in range(3):
        train([0, 1])
