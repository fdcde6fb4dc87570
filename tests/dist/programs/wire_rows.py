"""The ways to communicate that torch offers: each row is a function that uses one of them.

Names are looked up late unless a row says otherwise, so that what is patched is what is called.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn
from torch import Tensor, nn
from torch.distributed import all_reduce as early_all_reduce
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

Row = Callable[[], Any]

ROWS: dict[str, Row] = {}
COMPILED: dict[str, Row] = {}  # take long
MESH: dict[str, Row] = {}  # for 4 ranks


def row(table: dict[str, Row]) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        table[function.__name__] = function
        return function

    return add


def ones(elements: int = 8) -> Tensor:
    return torch.ones(elements)


def many(elements: int = 8) -> list[Tensor]:
    return [ones(elements) for _ in range(dist.get_world_size())]


def flat(elements: int = 8) -> Tensor:
    return ones(elements * dist.get_world_size())


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


def train(net: nn.Module, steps: int = 2) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(torch.ones(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


# -- functions of torch.distributed --------------------------------------------------------------


@row(ROWS)
def direct_calls() -> None:
    first = dist.get_rank() == 0
    dist.all_reduce(ones(), op=dist.ReduceOp.MAX)
    dist.broadcast(ones(), 1)
    dist.reduce(ones(), 0)
    dist.all_gather(many(), ones())
    dist.all_gather_single(flat(), ones())
    dist.gather(ones(), many() if first else None, 0)
    dist.scatter(ones(), many() if first else None, 0)
    dist.reduce_scatter_single(ones(), flat())
    dist.all_to_all_single(flat(), flat())


@row(ROWS)
def direct_all_to_all() -> None:
    dist.all_to_all(many(), many())


@row(ROWS)
def direct_reduce_scatter() -> None:
    dist.reduce_scatter(ones(), many())


@row(ROWS)
def direct_calls_asynchronous() -> None:
    works = [
        dist.all_reduce(ones(), async_op=True),
        dist.broadcast(ones(), 0, async_op=True),
        dist.all_gather(many(), ones(), async_op=True),
        dist.all_gather_single(flat(), ones(), async_op=True),
        dist.reduce_scatter_single(ones(), flat(), async_op=True),
        dist.all_to_all_single(flat(), flat(), async_op=True),
        dist.barrier(async_op=True),
    ]
    for work in works:
        work.wait()


@row(ROWS)
def old_names() -> None:
    dist.all_gather_into_tensor(flat(), ones())
    dist._all_gather_base(flat(), ones())
    dist.reduce_scatter_tensor(ones(), flat())
    dist._reduce_scatter_base(ones(), flat())
    dist.all_reduce_coalesced([ones(), ones(4)])
    dist.all_gather_coalesced([[ones(), ones(4)] for _ in many()], [ones(), ones(4)])


@row(ROWS)
def names_imported_early() -> None:
    early_all_reduce(ones())


@row(ROWS)
def process_group_methods() -> None:
    group = dist.group.WORLD
    group.allreduce(ones()).wait()
    group.allreduce([ones()]).wait()
    group.broadcast(ones(), 0).wait()
    group.allgather([many()], [ones()]).wait()
    group.allgather(many(), ones()).wait()
    group._allgather_base(flat(), ones()).wait()
    group._reduce_scatter_base(ones(), flat()).wait()
    group.allgather_into_tensor_coalesced([flat(), flat(4)], [ones(), ones(4)]).wait()
    group.reduce_scatter_tensor_coalesced([ones(), ones(4)], [flat(), flat(4)]).wait()
    group.barrier().wait()


@row(ROWS)
def process_group_methods_with_new_names() -> None:
    group = dist.group.WORLD
    group.all_gather_single(flat(), ones()).wait()
    group.reduce_scatter_single(ones(), flat()).wait()
    group.all_gather_single_coalesced([flat(), flat(4)], [ones(), ones(4)]).wait()
    group.reduce_scatter_single_coalesced([ones(), ones(4)], [flat(), flat(4)]).wait()


@row(ROWS)
def backend_methods() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend.allreduce([ones()]).wait()
    backend.broadcast([ones()], dist.BroadcastOptions()).wait()
    backend.allgather([many()], [ones()]).wait()
    backend.allreduce([ones(4)]).wait()


@row(ROWS)
def barriers() -> None:
    dist.barrier()
    dist.monitored_barrier()


@row(ROWS)
def object_collectives() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.all_gather_object([None] * size, {"rank": rank})
    dist.gather_object(rank, [None] * size if rank == 0 else None)
    dist.scatter_object_list([None], ["a", "bb"] if rank == 0 else None)
    dist.broadcast_object_list(["x" * 100])
    if rank == 0:
        dist.send_object_list(["to you"], 1)
    else:
        dist.recv_object_list([None], 0)


@row(ROWS)
def coalescing_manager() -> None:
    with dist._coalescing_manager():
        dist.all_reduce(ones())
        dist.all_reduce(ones(4))
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_gather_single(flat(), ones())
        dist.all_gather_single(flat(4), ones(4))
    manager.wait()
    with dist._coalescing_manager():
        dist.reduce_scatter_single(ones(), flat())
        dist.reduce_scatter_single(ones(4), flat(4))


@row(ROWS)
def batch_isend_irecv() -> None:
    peer = 1 - dist.get_rank()
    operations = [dist.P2POp(dist.isend, ones(), peer), dist.P2POp(dist.irecv, ones(), peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


@row(ROWS)
def send_and_receive() -> None:
    if dist.get_rank() == 0:
        dist.send(ones(), 1)
        dist.isend(ones(4), 1).wait()
        dist.send(ones(2), 1)
    else:
        dist.recv(ones(), 0)
        dist.irecv(ones(4), 0).wait()
        dist.recv(ones(2))


@row(ROWS)
def functional_collectives() -> None:
    group = dist.group.WORLD
    functional.all_reduce(ones(), "sum", group).clone()
    functional.all_gather_tensor(ones(), 0, group).clone()
    functional.reduce_scatter_tensor(flat(), "sum", 0, group).clone()
    functional.all_to_all_single(flat(), None, None, group).clone()
    functional.broadcast(ones(), 0, group).clone()
    for tensor in functional.all_reduce_coalesced([ones(), ones(4)], "sum", group):
        tensor.clone()


@row(ROWS)
def functional_collectives_with_gradients() -> None:
    group = dist.group.WORLD
    gathered = functional.all_gather_tensor_autograd(ones().requires_grad_(), 0, group)
    scattered = functional.reduce_scatter_tensor_autograd(flat().requires_grad_(), "sum", 0, group)
    exchanged = functional.all_to_all_single_autograd(flat().requires_grad_(), None, None, group)
    (gathered.sum() + scattered.sum() + exchanged.sum()).backward()


@row(ROWS)
def distributed_nn() -> None:
    tensor = torch.distributed.nn.all_reduce(ones().requires_grad_())
    gathered = torch.distributed.nn.all_gather(ones().requires_grad_())
    (tensor.sum() + sum(part.sum() for part in gathered)).backward()


# -- DTensor and parallel modules ----------------------------------------------------------------


@row(ROWS)
def dtensor_redistribute() -> None:
    whole = distribute_tensor(torch.ones(8, 8), mesh(), [Shard(0)])
    whole.redistribute(placements=[Replicate()]).to_local().clone()
    whole.redistribute(placements=[Shard(1)]).to_local().clone()


@row(ROWS)
def dtensor_full_tensor() -> None:
    local = torch.ones(4, 8)
    DTensor.from_local(local, mesh(), [Shard(0)]).full_tensor().clone()


@row(ROWS)
def dtensor_gradient_norm() -> None:
    net = fully_shard(model(), mesh=mesh())
    net(torch.ones(4, 16)).sum().backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    norm.full_tensor().item()  # type: ignore[operator]


@row(ROWS)
def tensor_parallel() -> None:
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    net = parallelize_module(model(), mesh(), plan)
    for _ in range(2):
        net(torch.ones(4, 16)).sum().backward()


# -- data parallel -------------------------------------------------------------------------------


@row(ROWS)
def ddp() -> None:
    train(DistributedDataParallel(model()))


@row(ROWS)
def ddp_no_sync() -> None:
    net = DistributedDataParallel(model())
    for micro_step in range(4):
        with net.no_sync() if micro_step % 2 == 0 else nullcontext():
            net(torch.ones(4, 16)).sum().backward()


@row(ROWS)
def ddp_static_graph() -> None:
    train(DistributedDataParallel(model(), static_graph=True))


@row(ROWS)
def ddp_python_hook() -> None:
    net = DistributedDataParallel(model())
    net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(net)


@row(ROWS)
def ddp_gradient_as_bucket_view() -> None:
    train(DistributedDataParallel(model(), gradient_as_bucket_view=True, bucket_cap_mb=0.001))


@row(ROWS)
def fsdp1() -> None:
    train(FullyShardedDataParallel(model(), device_id=torch.device("cpu")))


@row(ROWS)
def fsdp2() -> None:
    net = model()
    fully_shard(net[0], mesh=mesh())  # type: ignore[index]
    train(fully_shard(net, mesh=mesh()))


@row(ROWS)
def zero_redundancy_optimizer() -> None:
    net = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.1)
    for _ in range(2):
        net(torch.ones(4, 16)).sum().backward()
        optimizer.step()


@row(ROWS)
def pipelining() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    stage = PipelineStage(nn.Linear(16, 16), rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    for _ in range(2):
        if rank == 0:
            schedule.step(torch.ones(4, 16))
        else:
            schedule.step(target=torch.ones(4, 16))


@row(MESH)
def hybrid_fsdp1() -> None:
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    strategy = ShardingStrategy.HYBRID_SHARD
    cpu = torch.device("cpu")
    train(
        FullyShardedDataParallel(
            model(), device_mesh=grid, sharding_strategy=strategy, device_id=cpu
        )
    )


@row(MESH)
def hybrid_fsdp2() -> None:
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    train(fully_shard(model(), mesh=grid))


@row(MESH)
def tensor_and_data_parallel() -> None:
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    train(fully_shard(parallelize_module(model(), grid["tp"], plan), mesh=grid["dp"]))


# -- compiled ------------------------------------------------------------------------------------


def compiled(backend: str) -> None:
    torch._dynamo.reset()

    def reduced(x: Tensor) -> Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    def summed(x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    for function in (reduced, summed):
        call = torch.compile(function, backend=backend, fullgraph=True)
        for _ in range(3):
            call(ones())


@row(COMPILED)
def compiled_with_aot_eager() -> None:
    compiled("aot_eager")


@row(COMPILED)
def compiled_with_inductor() -> None:
    compiled("inductor")


@row(COMPILED)
def compiled_ddp() -> None:
    torch._dynamo.reset()
    train(torch.compile(DistributedDataParallel(model()), backend="aot_eager"))


@row(COMPILED)
def compiled_fsdp2() -> None:
    torch._dynamo.reset()
    train(torch.compile(fully_shard(model(), mesh=mesh()), backend="aot_eager"))
