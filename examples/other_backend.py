"""Trains under ZeRO-3 over another communication library, and shows that the result is the same.

The libraries here are as small as can be: ranks leave bytes in torch's key-value store and read
each other's. What counts is where one is put: as a backend of torch.distributed written in Python
(`c10d`), or as a class behind deepspeed.comm (`deepspeed`). Run both ways and compare:

    for library in gloo c10d deepspeed; do
        DSPROF=1 DSPROF_OUT=out/$library python -m torch.distributed.run --standalone \
            --nproc-per-node 2 examples/other_backend.py --library $library
    done
    dsprof compare out/gloo out/c10d
    dsprof compare out/gloo out/deepspeed

1. Correct: the lines `losses ... weights ...` are the same, bit by bit. With two ranks they can be:
   a sum of two has one order. With more ranks a library may add in another order; then the losses
   are close, and no more.
2. The same traffic: under OPERATIONS AND BYTES every operation is `same`, which is exact. What
   deepspeed.comm handed to the library is listed as `outside c10d`: torch never saw it.
3. The gain: with `--steps 500`, for noise shows from 5 s of steps on. Under TIMES the whole step,
   and in it exposed communication, is `faster` or `slower` by at least 2 % with 99 % confidence, or
   the noise hides it. How long each operation was waited for is beside its bytes, and
   `--format html` shows its bus bandwidth. (These libraries are slow: they are for reading.)
"""

import argparse
import hashlib
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.comm.torch import TorchBackend
from torch import Tensor, nn

STEPS = 12
WIDTH = 64

Finish = Callable[[], object]
"""Waits for the other ranks and writes the result."""


class Exchange:
    """One round in which each rank gives a tensor and gets those of all ranks."""

    def __init__(self, store: dist.Store, name: str, rank: int, size: int, given: Tensor) -> None:
        self.store, self.name, self.size, self.given = store, name, size, given
        raw = given.detach().contiguous().flatten().view(torch.uint8)
        store.set(f"{name}/{rank}", bytes(raw.tolist()))

    def results(self) -> list[Tensor]:
        """Wait for all ranks."""
        keys = [f"{self.name}/{rank}" for rank in range(self.size)]
        raw = [torch.tensor(list(self.store.get(key)), dtype=torch.uint8) for key in keys]
        if self.store.add(f"{self.name}/read", 1) == self.size:
            for key in [*keys, f"{self.name}/read"]:
                self.store.delete_key(key)
        return [part.view(self.given.dtype).view(self.given.shape) for part in raw]


class Library:
    """Collectives made of exchanges; each returns what finishes it."""

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.rounds = itertools.count()

    def exchange(self, given: Tensor) -> Exchange:
        return Exchange(self.store, f"round{next(self.rounds)}", self.rank, self.size, given)

    def all_reduce(self, tensor: Tensor, op: object) -> Finish:
        exchange = self.exchange(tensor)
        return lambda: tensor.copy_(reduced(exchange.results(), op))

    def all_gather(self, outputs: list[Tensor], given: Tensor) -> Finish:
        exchange = self.exchange(given)
        return lambda: [o.copy_(r) for o, r in zip(outputs, exchange.results(), strict=True)]

    def reduce_scatter(self, output: Tensor, given: Tensor, op: object) -> Finish:
        exchange = self.exchange(given)
        mine = slice(self.rank * output.numel(), (self.rank + 1) * output.numel())

        def finish() -> None:
            parts = [part.flatten()[mine] for part in exchange.results()]
            output.copy_(reduced(parts, op).view(output.shape))

        return finish

    def broadcast(self, tensor: Tensor, root: int) -> Finish:
        exchange = self.exchange(tensor)
        return lambda: tensor.copy_(exchange.results()[root])


def reduced(parts: list[Tensor], op: object) -> Tensor:
    stacked = torch.stack(parts)
    if op == dist.ReduceOp.MAX:
        return stacked.amax(0)
    total = stacked.sum(0)
    return total / len(parts) if op == dist.ReduceOp.AVG else total


# -- as a backend of torch.distributed -----------------------------------------------------------


class Pending(dist.Work):
    """A collective of the library in flight."""

    def __init__(self, finish: Finish) -> None:
        super().__init__()
        self.finish: Finish | None = finish

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self.finish is not None:
            with torch.no_grad():
                self.finish()
            self.finish = None
        return True


class LibraryGroup(dist.ProcessGroup):
    """What torch.distributed calls; written in Python, so nothing passes torch's dispatcher."""

    def __init__(self, library: Library) -> None:
        super().__init__(library.rank, library.size)
        self.library = library

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "library"

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Pending:
        op = opts.reduceOp.op if opts else dist.ReduceOp.SUM
        return Pending(self.library.all_reduce(tensors[0], op))

    def allgather(
        self, outputs: list[list[Tensor]], given: list[Tensor], opts: Any = None
    ) -> Pending:
        return Pending(self.library.all_gather(outputs[0], given[0]))

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Pending:
        parts = list(output.view(self.library.size, *given.shape))
        return Pending(self.library.all_gather(parts, given))

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Pending:
        op = opts.reduceOp.op if opts else dist.ReduceOp.SUM
        return Pending(self.library.reduce_scatter(output, given, op))

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Pending:
        return Pending(self.library.broadcast(tensors[0], opts.rootRank))

    def barrier(self, opts: Any = None) -> Pending:
        return Pending(self.library.broadcast(torch.zeros(1), 0))


def create_group(store: dist.Store, rank: int, size: int, timeout: timedelta) -> LibraryGroup:
    return LibraryGroup(Library(store, rank, size))


# -- as a class behind deepspeed.comm ------------------------------------------------------------


class Handle:
    """What deepspeed.comm gives for an asynchronous collective."""

    def __init__(self, finish: Finish) -> None:
        self.finish = finish

    def wait(self) -> None:
        self.finish()


class LibraryBackend(TorchBackend):
    """The large collectives by the library, all others by torch as before."""

    def __init__(self) -> None:
        super().__init__("gloo", timedelta(minutes=5), None)
        store = dist.PrefixStore("library", dist.distributed_c10d._get_default_store())
        self.library = Library(store, dist.get_rank(), dist.get_world_size())

    def all_gather_into_tensor(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
    ) -> Handle | None:
        parts = list(output_tensor.view(self.library.size, -1))
        return done(self.library.all_gather(parts, input_tensor.flatten()), async_op)

    def reduce_scatter_tensor(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        op: Any = dist.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,
    ) -> Handle | None:
        op = self._reduce_op(op)
        return done(self.library.reduce_scatter(output_tensor, input_tensor, op), async_op)


def done(finish: Finish, async_op: bool) -> Handle | None:
    if async_op:
        return Handle(finish)
    finish()
    return None


def start(library: str) -> None:
    """Initialise communication over `library`."""
    if library == "c10d":
        dist.Backend.register_backend("library", create_group, devices=["cpu"])
        deepspeed.init_distributed(dist_backend="library")
    elif library == "deepspeed":
        deepspeed.comm.comm.cdb = LibraryBackend()
        deepspeed.init_distributed()
    else:
        deepspeed.init_distributed(dist_backend="gloo")


# -- training, which knows nothing of all this ---------------------------------------------------


def train(steps: int) -> tuple[list[float], Tensor]:
    """Return the losses and the weights of the first layer in the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    engine, *_ = deepspeed.initialize(model=model, config=config)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(steps):
        batch = torch.randn(4, WIDTH, generator=generator, dtype=torch.float32)
        loss = engine(batch.to(torch.bfloat16)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        weights = model[0].weight.detach().float().clone()
    return losses, weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=["gloo", "c10d", "deepspeed"], default="gloo")
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    start(args.library)
    losses, weights = train(args.steps)
    digest = hashlib.sha256(bytes(weights.flatten().view(torch.uint8).tolist())).hexdigest()
    words = " ".join(map(float.hex, losses))
    # One write: the lines of two ranks share a terminal.
    print(f"rank {dist.get_rank()} losses {words} weights {digest[:16]}", flush=True)
    # A gloo thread that releases a tensor while Python ends aborts the process, dsprof or not: it
    # takes the GIL there. A barrier has no tensor, and by its end those before it are released.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
