"""The cases: what the ranks do, and what a verdict must say of it."""

from __future__ import annotations

import io
import os
import pdb
import resource
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Timer
from typing import Any

import torch
import torch.distributed as dist

from tests.hangs.draw import Draw
from tests.hangs.rank import Rank, hold_interpreter, sleep_forever, wait_for_lock

Program = Callable[[Rank], None]
Verdict = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A fault, and the verdicts that are right; empty: any. `ends`: those that suit, or all.

    `culprits` tells the ranks to name where they are not the one that was drawn.
    """

    program: Program
    kinds: tuple[str, ...]
    causes: tuple[str, ...] = ()
    mismatches: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    culprits: Callable[[Draw], Iterable[int]] = lambda draw: [draw.culprit]
    may_name_more: bool = False
    needs_network: bool = False
    is_calm: bool = False

    def problems(self, draw: Draw, verdict: Verdict) -> list[str]:
        """Return what is wrong with a verdict on this case."""
        if self.is_calm:
            is_right = verdict["kind"] in self.kinds
            return [] if is_right else [f"false alarm: {verdict['sentence']}"]
        named, culprits = set(verdict["ranks"]), set(self.culprits(draw))
        is_named = culprits <= named if self.may_name_more else culprits == named
        wrong = [] if is_named else [f"names ranks {sorted(named)}, not {sorted(culprits)}"]
        for key, right, is_value in (
            ("kind", self.kinds, verdict["kind"]),
            ("cause", self.causes, verdict["cause"]["kind"]),
            ("mismatch", self.mismatches, verdict["mismatch"]),
        ):
            if right and is_value not in right:
                wrong.append(f"{key} is {is_value}, not {' or '.join(map(str, right))}")
        return wrong


def _instead(of_call: Program) -> Program:
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


def _stuck(how: Callable[[], None]) -> Program:
    return _instead(lambda _: how())


def _raise_and_go_on(rank: Rank) -> None:
    with suppress(ValueError):
        raise ValueError("a bad sample")


def _raise(_: Rank) -> None:
    raise ValueError("a bad sample")


def _run_out_of_memory(_: Rank) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
    kept = []
    while True:
        kept.append(bytearray(1 << 28))


def _wait_for_worker(_: Rank) -> None:
    from torch.utils.data import DataLoader, Dataset

    class Stuck(Dataset[int]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            sleep_forever()
            return index

    next(iter(DataLoader(Stuck(), num_workers=1, multiprocessing_context="fork")))


def _read_pipe(rank: Rank) -> None:
    path = rank.folder / "mounted-folder-data.bin"
    os.mkfifo(path)
    with open(path, "rb") as never_written:
        never_written.read()


def _other_order(rank: Rank) -> None:
    groups = ["second", "third"]
    if rank.is_culprit:
        rank.stalls()
        groups.reverse()
    for group in groups:
        rank.call("all_reduce", group)


def _crossed_pipeline(rank: Rank) -> None:
    """The culprit and its neighbour both receive before they send."""
    peers = sorted([rank.draw.culprit, (rank.draw.culprit + 1) % rank.draw.ranks])
    if rank.rank in peers:
        rank.stalls()
        other = peers[rank.rank == peers[0]]
        dist.recv(torch.ones(16), other)
        dist.send(torch.ones(16), other)
    rank.call("all_reduce", "world")


def _neighbours(draw: Draw) -> list[int]:
    return [draw.culprit, (draw.culprit + 1) % draw.ranks]


def _ends_epoch_early(rank: Rank) -> None:
    for batch in range(6):
        if rank.is_culprit and batch == 4:
            rank.stalls()
            return
        rank.call("all_reduce", "world", elements=1000)


def _only_on_one(rank: Rank) -> None:
    """`if rank == n:` around a collective: the others are in the next one."""
    if rank.is_culprit:
        rank.stalls()
        rank.call("all_gather_into_tensor", "world", elements=256)
    rank.call("all_reduce", "world", elements=8)


def _cut_network(rank: Rank) -> None:
    if rank.is_culprit:
        rank.stalls()
    for _ in range(1_000_000):  # until the cable is cut
        rank.call("all_reduce", "world", elements=1 << 18)


def _train_zero3(rank: Rank, *, fault: str) -> None:
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


def _lose_store(rank: Rank) -> None:
    if rank.is_culprit:
        rank.stalls()
        (rank.folder / "end-store").touch()
    dist.new_group(list(range(rank.draw.ranks)), group_desc="late")
    rank.call("all_reduce", "world")


def _calm(slow: Program, *, on_all: bool = False) -> Program:
    """A rank, or all of them, takes long over something lawful, and the run goes on and ends."""

    def program(rank: Rank) -> None:
        if rank.is_culprit or on_all:
            rank.stalls()
            slow(rank)
        for _ in range(20):
            rank.call("all_reduce", "world", elements=8)

    return program


def _save_slowly(rank: Rank) -> None:
    class SlowDisk(io.FileIO):
        def write(self, data: Any) -> int:
            time.sleep(LONG_S / 8)
            return super().write(data)

    with SlowDisk(rank.folder / "checkpoint.pt", "wb") as disk:
        torch.save({"weights": torch.ones(10)}, disk)


def _compute(_: Rank) -> None:
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        torch.ones(256, 256) @ torch.ones(256, 256)


def _compile(_: Rank) -> None:
    def slowly(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        time.sleep(LONG_S)
        return graph.forward

    torch.compile(torch.nn.Linear(4, 4), backend=slowly)(torch.ones(4, 4))


def _debug(_: Rank) -> None:
    """Stop at a prompt of pdb, whose user thinks for a while."""
    mine, theirs = os.pipe()
    Timer(LONG_S, os.write, (theirs, b"continue\n")).start()
    with open(mine) as typed:
        pdb.Pdb(stdin=typed, stdout=io.StringIO()).set_trace()


def _straggle(rank: Rank) -> None:
    for _ in range(20):
        time.sleep(0.5 * rank.is_culprit)
        rank.call("all_reduce", "world", elements=8)


def _sleep_a_step(_: Rank) -> None:
    time.sleep(LONG_S)


def _sleep_as_a_laptop(rank: Rank) -> None:
    """All ranks are stopped and go on together; the launcher sees to it."""
    (rank.folder / "stop-all").touch()
    time.sleep(1)


LONG_S = 8.0

STUCK = ("never_entered", "came_late", "deadlock")
DIVERGED = ("never_entered", "mismatch", "deadlock")

CASES: dict[str, Case] = {
    "skips": Case(_instead(lambda _: None), DIVERGED),
    "other_op": Case(
        _instead(
            lambda rank: (
                rank.call("all_gather_into_tensor", elements=16)
                if rank.draw.op != "all_gather_into_tensor"
                else rank.call("all_reduce")
            )
        ),
        ("mismatch",),
        mismatches=("op",),
    ),
    "other_size": Case(
        _instead(lambda rank: rank.call(elements=1 << 16)),
        ("mismatch",),
        mismatches=("size", "shape"),
    ),
    "other_dtype": Case(
        _instead(lambda rank: rank.call(dtype=torch.float64)), ("mismatch",), mismatches=("dtype",)
    ),
    "other_order": Case(_other_order, ("deadlock",), may_name_more=True),
    "other_group": Case(
        _instead(lambda rank: rank.call(group="third")), DIVERGED, may_name_more=True
    ),
    "raises_and_goes_on": Case(_instead(_raise_and_go_on), DIVERGED),
    "dies_by_exception": Case(_instead(_raise), ("died",), ("exception",)),
    "killed": Case(
        _instead(lambda _: os.kill(os.getpid(), signal.SIGKILL)), ("died",), ("signal", "unknown")
    ),
    "exits": Case(_instead(lambda _: os._exit(3)), ("died",)),
    "aborts": Case(_instead(lambda _: os.abort()), ("died",), ("signal", "unknown")),
    "out_of_memory": Case(_instead(_run_out_of_memory), ("died",), ("out_of_memory",)),
    "stopped": Case(
        _instead(lambda _: os.kill(os.getpid(), signal.SIGSTOP)), ("frozen",), ("stopped",)
    ),
    "sleeps": Case(_stuck(sleep_forever), STUCK, ("sleep",)),
    "holds_interpreter": Case(
        _stuck(hold_interpreter), ("never_entered", "frozen"), ("interpreter_lock",)
    ),
    "waits_for_lock": Case(_stuck(wait_for_lock), STUCK, ("lock",)),
    "data_loader": Case(_instead(_wait_for_worker), STUCK, ("data_loader",)),
    "file_system": Case(_instead(_read_pipe), STUCK, ("file_system",)),
    "early_end_of_epoch": Case(_ends_epoch_early, ("never_entered", "died"), ("exited",)),
    "only_on_one": Case(_only_on_one, DIVERGED, may_name_more=True),
    "crossed_pipeline": Case(_crossed_pipeline, ("deadlock",), culprits=_neighbours),
    "zero3_branch": Case(partial(_train_zero3, fault="branch"), DIVERGED),
    "experts_without_tokens": Case(partial(_train_zero3, fault="no tokens"), DIVERGED),
    "zero3_checkpoint_on_one": Case(partial(_train_zero3, fault="checkpoint"), DIVERGED),
    "store_dies": Case(_lose_store, (), ("store",), culprits=lambda _: [], may_name_more=True),
    "network": Case(_cut_network, ("network",), needs_network=True, may_name_more=True),
}

CALM: dict[str, Program] = {
    "long_checkpoint": _calm(_save_slowly),
    "evaluation_on_one": _calm(_compute),
    "first_compilation": _calm(_compile, on_all=True),
    "debugger": _calm(_debug),
    "laptop_slept": _calm(_sleep_as_a_laptop, on_all=True),
    "straggler": _straggle,
    "long_step": _calm(_sleep_a_step, on_all=True),
}
"""Runs that take long and are not stuck: no alarm, or one that says so."""

CASES |= {name: Case(program, ("none", "slow"), is_calm=True) for name, program in CALM.items()}
