"""Every operation on the wire is one record with the size that nccl-tests would name."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsprof.hooks.releases import is_before
from dsprof.hooks.torch.steps import TrainingLoopHook
from dsprof.hooks.wire.dispatcher import DispatcherHook
from dsprof.hooks.wire.interception import CompleteHook
from dsprof.hooks.wire.native import NativeDispatcherHook
from dsprof.hooks.wire.operations import METHODS, WIRE_OPS
from dsprof.hooks.wire.process_group import ProcessGroupHook
from dsprof.hooks.wire.reduce_ops import reduce_op_name
from dsprof.recording.recorder.contexts import NOBODY, flushing
from dsprof.recording.recorder.recorder import FIRST_SAMPLE, SAMPLE, Recorder
from dsprof.trace.schema import Collective, Site
from dsprof.trace.writing.encode import Encoder
from tests.factories.foreign_kernel import foreign_kernel
from tests.handed_over import collectives, handed_over
from tests.hooks.conftest import ALL_WAYS, COMPLETE, IN_DISPATCHER, WORLD_SIZE, has_kernel
from tests.hooks.described import group_of

pytestmark = pytest.mark.usefixtures("in_c_and_in_python")

N = WORLD_SIZE
Install = Callable[..., Recorder]


def tensor(elements: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(elements, dtype=dtype)


def tensors(count: int = N) -> list[torch.Tensor]:
    return [tensor() for _ in range(count)]


OPERATIONS: list[tuple[str, Callable[[], Any], int, int]] = [
    ("all_reduce", lambda: dist.all_reduce(tensor()), 16, 1),
    ("all_reduce", lambda: dist.group.WORLD.allreduce(tensor()), 16, 1),
    ("broadcast", lambda: dist.broadcast(tensor(), 0), 16, 1),
    ("reduce", lambda: dist.reduce(tensor(), 3), 16, 1),
    ("all_gather", lambda: dist.all_gather(tensors(), tensor()), 16 * N, N),
    (
        "all_gather_into_tensor",
        lambda: dist.all_gather_into_tensor(tensor(4 * N), tensor()),
        16 * N,
        1,
    ),
    ("reduce_scatter", lambda: dist.reduce_scatter(tensor(), tensors()), 16 * N, N),
    (
        "reduce_scatter_tensor",
        lambda: dist.reduce_scatter_tensor(tensor(), tensor(4 * N)),
        16 * N,
        1,
    ),
    ("gather", lambda: dist.gather(tensor(), tensors(), 0), 16 * N, 1),
    ("scatter", lambda: dist.scatter(tensor(), tensors(), 0), 16 * N, 1),
    ("all_to_all", lambda: dist.all_to_all(tensors(), tensors()), 16 * N, N),
    (
        "all_to_all_single",
        lambda: dist.all_to_all_single(tensor(4 * N), tensor(4 * N)),
        16 * N,
        1,
    ),
    ("barrier", lambda: dist.barrier(), 0, 0),
    ("send", lambda: dist.send(tensor(), 5), 16, 1),
    ("recv", lambda: dist.recv(tensor(), 5), 16, 1),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ALL_WAYS)
@pytest.mark.parametrize(("op", "issue", "nbytes", "count"), OPERATIONS)
def test_operation(
    install: Install,
    kind: type,
    op: str,
    issue: Callable[[], Any],
    nbytes: int,
    count: int,
) -> None:
    recorder = install(kind)
    issue()
    assert recorder.failures == {}
    found = [r for r in collectives(recorder) if r.op == op]
    assert len(found) == len(collectives(recorder)) == 1
    assert found[0].nbytes == nbytes
    assert found[0].elements == nbytes // 4
    assert found[0].tensors == count
    assert found[0].dtype == ("float32" if count else "")
    assert group_of(recorder, found[0]).size == N


@pytest.mark.parametrize("kind", ALL_WAYS)
def test_reduce_op_root_and_peer(install: Install, kind: type) -> None:
    recorder = install(kind)
    dist.all_reduce(tensor(), op=dist.ReduceOp.MAX)
    dist.broadcast(tensor(), 6)
    dist.send(tensor(), 5)
    found = collectives(recorder)
    assert [record.reduce_op for record in found] == ["MAX", "", ""]

    assert reduce_op_name(dist.group.WORLD.boxed()) == ""  # an object that does not tell
    assert [record.peer for record in found] == [-1, 6, 5]


@pytest.mark.parametrize("name", ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"])
def test_each_reduce_op_has_its_name(install: Install, name: str) -> None:
    recorder = install(ProcessGroupHook)
    for is_async in (True, False):
        dist.all_reduce(tensor(), op=getattr(dist.ReduceOp, name), async_op=is_async)
    found = collectives(recorder)
    assert [record.reduce_op for record in found] == [name, name]
    assert sorted(record.is_async for record in found) == [False, True]


def test_premul_sum(install: Install) -> None:
    recorder = install(ProcessGroupHook)
    dist.all_reduce(tensor(), op=dist._make_nccl_premul_sum(2.0))
    assert [record.reduce_op for record in collectives(recorder)] == ["PREMUL_SUM"]


@pytest.mark.parametrize("kind", ALL_WAYS)
def test_a_synchronous_call_blocks_from_its_issue_on(install: Install, kind: type) -> None:
    recorder = install(kind)
    dist.all_reduce(tensor())
    dist.all_reduce(tensor(), async_op=True).wait()
    sync, later = collectives(recorder)
    assert sync.blocked_ns == sync.waited_ns - sync.issue_ns
    assert later.blocked_ns == later.waited_ns - later.wait_ns


@pytest.mark.parametrize("kind", ALL_WAYS)
def test_a_record_keeps_no_options(install: Install, kind: type) -> None:
    recorder, options = install(kind), dist.AllreduceOptions()
    dist.group.WORLD.allreduce([tensor()], options)
    kept = weakref.ref(options)
    del options
    assert kept() is None
    assert len(collectives(recorder)) == 1


@pytest.mark.parametrize("kind", ALL_WAYS)
def test_peers_are_global_ranks(install: Install, kind: type) -> None:
    recorder = install(kind)
    evens = dist.new_group([0, 2, 4, 6])
    dist.broadcast(tensor(), 4, group=evens)
    found = collectives(recorder)[-1]
    assert found.peer == 4
    assert group_of(recorder, found).ranks == [0, 2, 4, 6]
    assert group_of(recorder, found).label != "world"


@pytest.mark.parametrize("kind", ALL_WAYS)
def test_sync_and_async(install: Install, kind: type) -> None:
    recorder = install(kind)
    dist.all_reduce(tensor())
    work = dist.all_reduce(tensor(), async_op=True)
    work.wait()
    found = collectives(recorder)
    assert [(record.is_async, record.waits) for record in found] == [(False, 1), (True, 1)]
    assert all(r.issue_ns <= r.return_ns <= r.wait_ns <= r.waited_ns for r in found)
    assert recorder.in_flight.unmatched_waits == 0
    assert recorder.in_flight.unfinished() == []


@pytest.mark.parametrize("is_first_waited_first", [True, False])
def test_a_call_is_unfinished_until_it_is_waited_for(
    install: Install, is_first_waited_first: bool
) -> None:
    recorder = install(ProcessGroupHook)
    works = [dist.all_reduce(tensor(), async_op=True)]
    (first,) = recorder.in_flight.unfinished()
    written = Encoder(0, 1).open_collective(first)
    assert (written.args.peer, written.args.issue_ns) == (-1, first.issue_ns - 1)
    works.append(dist.all_reduce(tensor(), async_op=True))
    assert [record.id for record in recorder.in_flight.unfinished()] == [first.id, first.id + 1]
    for work in works if is_first_waited_first else works[::-1]:
        work.wait()
    assert sorted(record.id for record in handed_over(recorder)) == [first.id, first.id + 1]
    assert recorder.in_flight.unfinished() == []
    assert recorder.in_flight.unmatched_waits == 0


@pytest.mark.parametrize("kind", [*COMPLETE, ProcessGroupHook])
@pytest.mark.parametrize("fails", [False, True])
def test_a_monitored_barrier_is_in_flight_while_it_blocks(
    install: Install, monkeypatch: pytest.MonkeyPatch, kind: type, fails: bool
) -> None:
    seen: list[Collective] = []

    def barrier(_: dist.ProcessGroup) -> None:
        seen.extend(recorder.in_flight.unfinished())
        if fails:
            raise RuntimeError("Rank 1 failed to pass monitoredBarrier in 1000 ms")

    monkeypatch.setattr(dist.ProcessGroup, "monitored_barrier", barrier)
    recorder = install(kind)
    with suppress(RuntimeError):
        dist.group.WORLD.monitored_barrier()
    (record,) = seen
    assert (record.op, record.seq, record.nbytes) == ("monitored_barrier", 1, 0)
    assert handed_over(recorder) == [record]
    assert recorder.in_flight.unfinished() == []
    assert (record.waits, bool(record.done_ns)) == (1, not fails)


@pytest.mark.parametrize("kind", ALL_WAYS)
def test_collectives_are_counted_for_each_group_and_pairs_for_each_peer(
    install: Install, kind: type
) -> None:
    recorder = install(kind)
    pair = dist.new_group([0, 1])
    for group in (None, pair, None):
        dist.all_reduce(tensor(), group=group)
    for peer in (1, 2, 1):
        dist.send(tensor(), peer)
    assert [record.seq for record in collectives(recorder)] == [1, 1, 2, 1, 1, 2]


@pytest.mark.parametrize("kind", ALL_WAYS)
def test_the_site_is_the_line_outside_torch(install: Install, kind: type) -> None:
    recorder = install(kind)
    dist.all_reduce(tensor())
    site = next(d for d in recorder.outbox.definitions if isinstance(d, Site))
    assert site.file == __file__
    assert site.function == "test_the_site_is_the_line_outside_torch"
    assert site.line == test_the_site_is_the_line_outside_torch.__code__.co_firstlineno + 3


def test_in_backward_the_site_is_the_line_that_called_it(install: Install) -> None:
    recorder = install(CompleteHook, TrainingLoopHook)

    def reduce(gradient: torch.Tensor) -> None:
        thread = threading.Thread(target=dist.all_reduce, args=(gradient,))  # no frame of ours
        thread.start()
        thread.join()
        recorder.contexts.become(flushing(NOBODY, 7, recorder.progress.scope.site))
        dist.all_reduce(gradient)
        recorder.contexts.become(NOBODY)
        dist.all_reduce(gradient)

    weight = torch.ones(4, requires_grad=True)
    weight.register_hook(reduce)
    weight.sum().backward()
    sites = {d.id: d for d in recorder.outbox.definitions if isinstance(d, Site)}
    lines = [sites[record.site].function for record in collectives(recorder)]
    here = "test_in_backward_the_site_is_the_line_that_called_it"
    assert lines == [here, here, "reduce"]


def test_each_thread_counts_for_its_group_while_their_calls_overlap(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = dist.new_group([0, 1]), dist.new_group([0, 2])
    is_inside, may_return = threading.Event(), threading.Event()
    reduce = dist.ProcessGroup.allreduce

    def slow_in_the_first(group: dist.ProcessGroup, *args: Any) -> Any:
        if group is first and not is_inside.is_set():
            is_inside.set()
            may_return.wait()  # as a call in C++, which releases the interpreter lock
        return reduce(group, *args)

    monkeypatch.setattr(dist.ProcessGroup, "allreduce", slow_in_the_first)
    recorder = install(ProcessGroupHook)
    dist.all_reduce(tensor())  # C knows the dtype from now on
    options: dict[str, Any] = {"args": (tensor(),), "kwargs": {"group": first}}
    other = threading.Thread(target=dist.all_reduce, daemon=True, **options)
    other.start()
    is_inside.wait()
    dist.all_reduce(tensor(), group=second)
    dist.all_reduce(tensor(), group=second)
    may_return.set()
    other.join()
    dist.all_reduce(tensor(), group=first)
    counted = [(group_of(recorder, one).ranks, one.seq) for one in collectives(recorder)[1:]]
    assert sorted(counted) == [([0, 1], 1), ([0, 1], 2), ([0, 2], 1), ([0, 2], 2)]


@pytest.mark.parametrize("kind", IN_DISPATCHER)
def test_functional_collectives_are_seen_by_the_dispatcher(install: Install, kind: type) -> None:
    import torch.distributed._functional_collectives as functional

    recorder = install(kind)
    functional.all_reduce(tensor(), "sum", dist.group.WORLD).clone()
    assert [record.op for record in collectives(recorder)] == ["all_reduce"]


@pytest.mark.parametrize("kind", IN_DISPATCHER)
def test_tracing_is_not_communication(install: Install, kind: type) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    recorder = install(kind)
    with FakeTensorMode():
        dist.all_reduce(torch.zeros(4))
    assert collectives(recorder) == []
    dist.all_reduce(tensor())
    assert len(collectives(recorder)) == 1


@pytest.mark.parametrize("kind", IN_DISPATCHER)
def test_no_tensor_or_group_is_kept(install: Install, kind: type) -> None:
    recorder = install(kind)
    data = tensor()
    group = dist.new_group([0, 1])
    dist.all_reduce(data, group=group)
    dist.all_reduce(data, async_op=True).wait()
    alive = [weakref.ref(data), weakref.ref(group)]
    dist.destroy_process_group(group)
    del data, group
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    assert len(collectives(recorder)) == 2


def test_the_kernels_go_away(install: Install) -> None:
    held = has_kernel("c10d::allreduce_")  # by a kernel in C++, which stays
    recorder = Recorder(lambda: True)
    hook = DispatcherHook(recorder)
    hook.install("torch.distributed")
    assert has_kernel("c10d::allreduce_")
    hook.uninstall()
    assert has_kernel("c10d::allreduce_") == held
    dist.all_reduce(tensor())
    assert collectives(recorder) == []


def test_a_kernel_that_stays_tells_nobody(install: Install) -> None:
    recorder = Recorder(lambda: True)
    hook = NativeDispatcherHook(recorder)
    for _ in range(2):
        hook.install("torch.distributed")
        hook.uninstall()
        dist.all_reduce(tensor())
    assert not recorder.recording


@pytest.mark.parametrize("kind", IN_DISPATCHER)
def test_another_tool_in_the_slot_is_respected(install: Install, kind: type) -> None:
    with foreign_kernel(), pytest.raises(RuntimeError, match="another tool"):
        kind(Recorder(lambda: True)).install("torch.distributed")


@pytest.mark.parametrize("kind", ALL_WAYS)
def test_an_inner_failure_leaves_the_run_alone(install: Install, kind: type) -> None:
    recorder = install(kind)
    recorder.hot.works = None  # type: ignore[assignment]
    data = torch.ones(4)
    works = [dist.all_reduce(data, async_op=True) for _ in range(5)]
    assert None not in works
    assert "c10d" in recorder.failures


@pytest.mark.parametrize("kind", IN_DISPATCHER)
def test_one_odd_call_does_not_blind_the_hook(install: Install, kind: type) -> None:
    recorder = install(kind)
    recorder.in_flight.poll = None  # type: ignore[method-assign, assignment]
    first = dist.all_reduce(tensor(), async_op=True)
    dist.all_reduce(tensor(), async_op=True)  # fails inside: something is in flight to be polled
    del recorder.in_flight.poll
    first.wait()
    before = len(collectives(recorder))
    dist.all_reduce(tensor())
    assert len(collectives(recorder)) == before + 1


@pytest.mark.parametrize("kind", ALL_WAYS)
def test_one_in_so_many_records_is_timed(install: Install, kind: type) -> None:
    recorder, timed = install(kind), []
    for number in range(1, FIRST_SAMPLE + 2 * SAMPLE):
        before = recorder.hot.samples, recorder.hot.sampled_ns
        dist.all_reduce(tensor())
        if (recorder.hot.samples, recorder.hot.sampled_ns) > before:
            timed.append(number)
            assert before[1] < recorder.hot.sampled_ns <= len(timed) * recorder.hot.longest_ns
    assert timed == [FIRST_SAMPLE, FIRST_SAMPLE + SAMPLE]


@pytest.mark.parametrize("kind", IN_DISPATCHER)
def test_sparse_tensors_have_the_size_of_their_values(install: Install, kind: type) -> None:
    """Two rows of an embedding with three values each."""
    recorder = install(kind)
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[0, 2]]), torch.ones(2, 3), (4, 3), check_invariants=True
    )
    dist.all_reduce(sparse)
    assert recorder.failures == {}
    [record] = collectives(recorder)
    assert (record.op, record.nbytes, record.elements) == ("all_reduce_sparse", 24, 6)


def test_every_c10d_operation_and_method_is_known() -> None:
    """A new torch with a new operation fails here first."""
    ops = {name.removeprefix("c10d::") for name in torch._C._dispatch_get_all_op_names()
           if name.startswith("c10d::")}  # fmt: skip
    known = {name for name, op in WIRE_OPS.items() if not is_before("torch", op.since or "0")}
    assert ops - {"check_for_nan"} == known
    assert set(METHODS.values()) <= set(WIRE_OPS)


@pytest.mark.parametrize("kind", [*COMPLETE, ProcessGroupHook])
@pytest.mark.parametrize("as_argument", [lambda tensor: tensor, lambda tensor: [tensor]])
def test_a_bare_call_leaves_no_reference_to_its_tensor(
    install: Install, kind: type, as_argument: Callable[[torch.Tensor], Any]
) -> None:
    recorder = install(kind)
    tensor = torch.ones(4)
    reference = weakref.ref(tensor)
    dist.group.WORLD.allreduce(as_argument(tensor)).wait()
    del tensor
    gc.collect()
    assert reference() is None
    assert len(handed_over(recorder)) == 1


@pytest.mark.parametrize("kind", [*COMPLETE, ProcessGroupHook])
def test_followers_hear_of_what_python_issues(install: Install, kind: type) -> None:
    recorder = install(kind)
    told: list[str] = []
    recorder.in_flight.followers += (lambda record, outputs: told.append(record.op),)
    dist.all_reduce(torch.ones(4), async_op=True).wait()
    assert told == ["all_reduce"]
