"""The wire: every collective that is really issued, once, whoever issues it.

`ProcessGroupHook` replaces methods of the class ProcessGroup: all that Python issues.
`DispatcherHook` puts a kernel below each `c10d::*` operation at dispatch key BackendSelect, in
Python (`dsprof.hooks.wire.native` has them in C++): all callers of a ProcessGroup, C++ ones
included, pass there, once a collective, with the GIL released while the collective runs. Where both
are in place a method announces its collective, and the kernel leaves it to the method, which has at
hand what the kernel would have to unbox.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from threading import get_ident
from time import thread_time_ns
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from dsprof.hooks.base import Hook, Target, hide_from_dynamo
from dsprof.hooks.call_sites import Sites
from dsprof.hooks.dtypes import DTYPES
from dsprof.hooks.wire.groups import Groups
from dsprof.hooks.wire.layers import KEY, Layers, check_slot
from dsprof.hooks.wire.operations import METHODS, WIRE_OPS, WireOp
from dsprof.recording.recorder.hot_state import Context
from dsprof.recording.recorder.in_flight import InFlight
from dsprof.recording.recorder.interrupts import raise_if_of_signal_handler
from dsprof.recording.recorder.live_state import Kinds
from dsprof.recording.recorder.outbox import Outbox
from dsprof.recording.recorder.recorder import FIRST_SAMPLE, SAMPLE, Recorder
from dsprof.trace.dumps.state_file import PEER_SHIFT, UNFOLLOWED
from dsprof.trace.schema import Collective
from dsprof.trace.scope import clock


class _WireHook(Hook):
    """Makes one record of each collective that a subclass gets to see."""

    name = "c10d"

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.groups = recorder.shared(Groups)
        self.sites = recorder.shared(Sites)
        self.layers = recorder.shared(Layers)

    def make_note(
        self, op: WireOp, unbox: Callable[[Any], Any] | None
    ) -> Callable[..., Collective | None]:
        """Return the function that records one collective of kind `op`, and returns the record.

        A closure and not a method: it runs for each collective, and names bound here cost less
        than attributes. Its caller is one frame below whoever issued the collective.
        """
        recorder, in_flight = self.recorder, self.recorder.in_flight
        hot, add = recorder.hot, recorder.outbox.add
        context_of, next_id = recorder.contexts.current, recorder.ids.__next__
        group_of, known_group = self.groups.state, self.groups.known.get
        site_above = self.sites.above
        blocking = in_flight.blocking
        name, per_rank, is_point_to_point = op.name, op.per_rank, op.is_point_to_point
        is_of_host = name == _BLOCKING
        plain, dtypes, next_is_timed = torch.Tensor, DTYPES, recorder.cost.are_timed.__next__
        live, sparse = in_flight.state, f"{name}_sparse"
        dense_kinds, sparse_kinds = Kinds(live.words, name), Kinds(live.words, sparse)

        def note(
            tensors: Sequence[torch.Tensor],
            pg: Any,
            is_async: bool,
            reduce_op: Any,
            peer: int,
            work: Any,
            issue_ns: int,
            return_ns: int,
        ) -> Collective | None:
            is_timed = next_is_timed()
            if is_timed:  # by the CPU, for others may take it from this thread in between
                begin_ns = thread_time_ns()
            state = known_group(id(pg))  # as `Groups.state`, in line
            if state is None or state.ref() is not pg:
                state = group_of(pg)
            group = state.group
            on_host = state.is_host or is_of_host
            nbytes = elements = 0
            dtype = ""
            called, kinds = name, dense_kinds
            count = len(tensors)
            if count:
                tensor = tensors[-1]
                on_host = tensor.is_cpu or (on_host and not tensor.is_cuda)
                if type(tensor) is not plain and is_traced(tensor):
                    return None
                dtype, item_bytes = dtypes[tensor.dtype]
                if tensor.is_sparse:
                    called, kinds = sparse, sparse_kinds
                    nbytes = sum(t._values().nbytes for t in tensors)
                elif count == 1:
                    nbytes = tensor.nbytes
                else:
                    nbytes = sum(t.nbytes for t in tensors)
                elements = nbytes // item_bytes
                if per_rank:
                    nbytes *= group.size
                    elements *= group.size
            if hot.works:
                in_flight.poll()
            if peer >= 0:
                peer = group.ranks[peer]
            thread, scope = get_ident(), hot.scope
            context = context_of()
            context.wire_ops += 1
            site = context.site or site_above(2) or scope.site
            number = next_id()
            seq = state.next_seq(name, peer) if is_point_to_point else next(state.collectives)
            record = Collective(
                number,
                group.id,
                seq,
                nbytes,
                elements,
                issue_ns,
                called,
                count,
                dtype,
                context.requested,
                context.request,
                is_async,
                reduce_op,
                peer,
                site,
                scope.step,
                scope.micro_step,
                scope.phase,
                scope.engine,
                context.flush,
                context.fetch,
                context.coalesced,
                thread,
                return_ns,
            )
            is_followed = on_host and work is not None
            live.issue(
                number,
                -seq if is_point_to_point else seq,
                group.id if peer < 0 else group.id | peer + 1 << PEER_SHIFT,
                kinds[dtype],
                nbytes,
                issue_ns,
                site,
                scope.step,
                0 if is_followed else return_ns if on_host else UNFOLLOWED,
                thread,
            )
            if is_followed:
                record.pending_ns = return_ns
                if is_async:
                    if unbox is not None:
                        work = unbox(work)
                    key, works = id(work), hot.works
                    if key in works:  # a library's one Work for all that is done at once
                        live.done(works[key][1].id, UNFOLLOWED)
                        add(works[key][1])
                    works[key] = (work, record)
                else:
                    # The library waits for it at once, in this thread.
                    if thread in blocking:
                        live.done(blocking[thread].id, UNFOLLOWED)
                        add(blocking[thread])
                    blocking[thread] = record
            elif on_host:
                record.done_ns = return_ns
                record.blocked_ns = return_ns - issue_ns
                add(record)
            else:
                in_flight.on_device(record, unbox(work) if work is not None and unbox else work)
            if is_timed:
                taken_ns = thread_time_ns() - begin_ns
                hot.samples += 1
                hot.sampled_ns += taken_ns
                hot.longest_ns = max(hot.longest_ns, taken_ns)
            return record

        tell = InFlight.tell_followers
        own = (note, op.sized, Groups.state, InFlight.poll, Outbox.add, tell)
        hide_from_dynamo(*own, self.sites.above, self.sites.look_above, and_calls=True)
        return note


class DispatcherHook(_WireHook):
    """Sees collectives in the dispatcher, below every caller of a process group."""

    _library: Any = None

    def modules(self) -> tuple[str, ...]:
        return ("torch.distributed",)

    def install(self, module: str) -> None:
        """Register the kernels.

        Raises:
            RuntimeError: another tool already holds the kernel of an operation.
        """
        ops = {name: op for name, op in WIRE_OPS.items() if hasattr(torch.ops.c10d, name)}
        for name in ops:
            check_slot(f"c10d::{name}", "collectives that C++ issues")
        self._put_in(ops)

    def uninstall(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _put_in(self, ops: dict[str, WireOp]) -> None:
        self._library = torch.library.Library("c10d", "IMPL")
        for name, op in ops.items():
            self._library.impl(name, self._kernel(name, op), KEY, with_keyset=True)

    def _kernel(self, name: str, op: WireOp) -> Callable[..., Any]:
        overload = getattr(torch.ops.c10d, name).default
        redispatch = overload._handle.redispatch_boxed
        below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
        recorder, note, sized = self.recorder, self.make_note(op, dist.Work.unbox), op.sized
        in_flight = recorder.in_flight
        unbox_group, announced = dist.ProcessGroup.unbox, self.layers.announced
        noted_below = self.layers.noted_below
        at = _positions(overload._schema)
        group_at, async_at, reduce_at, peer_at = at.group, at.is_async, at.reduce_op, at.peer

        def kernel(keyset: Any, *args: Any) -> Any:
            is_announced = announced and get_ident() in announced
            if is_announced or (not recorder.hot.recording and not recorder.arm()):
                return redispatch(keyset & below, *args)
            if in_flight.device is not None:
                in_flight.device.begin()
            issue_ns = clock()
            result = redispatch(keyset & below, *args)
            return_ns = clock()
            if not self.broken:
                try:
                    work = result[-1] if type(result) is tuple else result
                    record = note(
                        sized(args),
                        unbox_group(args[group_at]),
                        # An argument that equals its default (asynchronous) is not passed.
                        args[async_at] if 0 < async_at < len(args) else work is not None,
                        args[reduce_at] if reduce_at else None,
                        args[peer_at] if peer_at else -1,
                        work,
                        issue_ns,
                        return_ns,
                    )
                    if record is not None:
                        noted_below[record.thread] = return_ns
                    if in_flight.followers:
                        in_flight.tell_followers(record, args[0])
                except Exception as error:
                    self.fail(error)
            return result

        hide_from_dynamo(kernel)
        return kernel


class ProcessGroupHook(_WireHook):
    """Sees the methods of class ProcessGroup: all that Python issues, nothing that C++ issues."""

    targets = tuple(
        Target(
            *("torch.distributed", "ProcessGroup", method, "issues a collective"),
            carries=f"{WIRE_OPS[op].name} calls from Python",
        )
        for method, op in METHODS.items()
    )

    @property
    def has_kernels(self) -> bool:
        """Whether there are some in the dispatcher, too: they must know what a method records."""
        return self.switch.in_python

    @has_kernels.setter
    def has_kernels(self, there: bool) -> None:
        self.switch.in_python = there

    def begin_apart(self) -> Apart | None:
        """Count apart what the call that follows puts on record."""
        try:
            return Apart(self.recorder)
        except Exception as error:
            self.fail(error)
            return None

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        op = WIRE_OPS[METHODS[target.name]]
        hook, recorder, note = self, self.recorder, self.make_note(op, None)
        is_plain, sized = op.name in _TAKES_LIST, op.sized
        may_be_lone = is_plain or op.name in _NESTED
        has_peer, has_root = op.is_point_to_point, op.name in _HAS_ROOT
        has_reduce_op, plain_group = "reduce" in op.name, dist.ProcessGroup
        announced, in_flight = self.layers.announced, recorder.in_flight
        noted_below, hot, switch = self.layers.noted_below, recorder.hot, self.switch

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if switch.broken or (not hot.recording and not recorder.arm()):
                return original(self, *args, **kwargs)
            if in_flight.device is not None:
                in_flight.device.begin()
            apart = None if type(self) is plain_group else hook.begin_apart()
            # What a group in Python issues from C++, the kernel records.
            had_kernels = hook.has_kernels
            is_announced = apart is None and had_kernels
            if is_announced:
                announced.add(get_ident())
            issue_ns = clock()
            try:
                work = original(self, *args, **kwargs)
            finally:
                if is_announced:
                    announced.discard(get_ident())
                if apart is not None:
                    apart.end()
            return_ns = clock()
            if apart is not None:
                is_on_record = apart.is_on_record
            else:  # by a kernel, if another thread has brought kernels in meanwhile
                came = hook.has_kernels is not had_kernels
                is_on_record = came and noted_below.get(get_ident(), 0) >= issue_ns
            if not is_on_record:
                try:
                    given = (*args, *kwargs.values()) if kwargs else args
                    is_list = is_plain and type(given[0]) is list
                    options = given[-1] if given else None
                    peer = -1
                    if has_root:
                        peer = getattr(options, "rootRank", -1)
                    elif has_peer and len(given) > 2:
                        peer = given[1]
                    record = note(
                        given[0]
                        if is_list
                        else sized(_as_lists(given, op) if may_be_lone else given),
                        self,
                        getattr(options, "asyncOp", work is not None),
                        options if has_reduce_op and type(options) in _WITH_OP else None,
                        peer,
                        work,
                        issue_ns,
                        return_ns,
                    )
                    if in_flight.followers:
                        in_flight.tell_followers(record, given[0] if given else ())
                except Exception as error:
                    hook.fail(error)
            return work

        # By this name C++ knows a call that comes from an override and must not go back there.
        code = method.__code__.replace(co_name=target.name)  # type: ignore[attr-defined]
        method.__code__ = code  # type: ignore[attr-defined]
        hide_from_dynamo(method)
        if op.name == _BLOCKING:
            return self._noted_first(original, note, method)
        return self._usual_in_c(op, original, method)

    def _noted_first(
        self,
        original: Callable[..., Any],
        note: Callable[..., Collective | None],
        otherwise: Callable[..., Any],
    ) -> Callable[..., Any]:
        """Return a method that records its call before it is made: it may never return."""
        hook, recorder, plain_group = self, self.recorder, dist.ProcessGroup
        announced, in_flight, switch = self.layers.announced, recorder.in_flight, self.switch

        @functools.wraps(original)
        def blocking(self: Any, *args: Any, **kwargs: Any) -> Any:
            is_recorded = not switch.broken and (recorder.hot.recording or recorder.arm())
            if type(self) is not plain_group or not is_recorded:
                return otherwise(self, *args, **kwargs)
            start_ns, thread, record, finished = clock(), get_ident(), None, False
            try:
                record = note((), self, False, None, -1, self, start_ns, start_ns)
            except Exception as error:
                hook.fail(error)
            announced.add(thread)
            try:
                result = original(self, *args, **kwargs)
                finished = True
                return result
            finally:
                announced.discard(thread)
                if record is not None:
                    in_flight.waited(None, start_ns, clock(), finished)

        hide_from_dynamo(blocking)
        return blocking

    def _usual_in_c(
        self, op: WireOp, original: Callable[..., Any], method: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return `method`, where C has a part of it, in C."""
        sized_at = _SIZED_AT.get(op.name)
        if sized_at is None:
            return method
        recorder = self.recorder
        held = (
            *(op.name, self.groups.state, DTYPES),
            Kinds(recorder.in_flight.state.words, op.name),
            *(self.sites.known, self.sites.look_above),
            *(recorder.in_flight.poll, raise_if_of_signal_handler),
            *(_WITH_OP if "reduce" in op.name else None, self.layers.noted_below),
            *(torch.Tensor, dist.ProcessGroup),
        )
        numbers = (sized_at, op.name in _TAKES_LIST, SAMPLE, FIRST_SAMPLE)
        return self.in_c("collective", original, method, held, numbers)


class Apart:
    """Counts what a call puts on record, apart from all else that this thread does."""

    def __init__(self, recorder: Recorder, coalesced: int = 0) -> None:
        self._contexts = recorder.contexts
        self._outer = self._contexts.current()
        coalesced = coalesced or self._outer.coalesced
        outer = self._outer
        self.context = Context(
            *(outer.request, outer.requested, outer.flush, outer.fetch, 0, coalesced, outer.site)
        )
        self._contexts.become(self.context)

    def end(self) -> None:
        """Go on in the context that was."""
        self._contexts.become(self._outer)
        self._outer.wire_ops += self.context.wire_ops

    @property
    def is_on_record(self) -> bool:
        """Whether the call ended in a collective that is on record."""
        return self.context.wire_ops > 0


class _Positions(NamedTuple):
    """Where an operation's schema has what; 0 (never right: tensors come first) for nowhere."""

    group: int
    is_async: int
    reduce_op: int
    peer: int


def _positions(schema: Any) -> _Positions:
    names = [argument.name for argument in schema.arguments]

    def first(*wanted: str) -> int:
        return next((names.index(name) for name in wanted if name in names), 0)

    return _Positions(
        group=first("process_group"),
        is_async=first("async_op", "asyncOp"),
        reduce_op=first("reduce_op"),
        peer=first("root_rank", "dst", "src"),
    )


# What names a reduce op; reading it costs as much as the record, so the writer does.
_WITH_OP = {
    getattr(dist, name)
    for name in (
        *("AllreduceOptions", "AllreduceCoalescedOptions", "ReduceOptions", "ReduceScatterOptions"),
        *("ReduceOp", "RedOpType"),
    )
    if hasattr(dist, name)
} | {dist.ReduceOp.RedOpType}
_SIZED_AT = {
    "all_reduce": 1,
    "all_reduce_coalesced": 1,
    "all_gather_into_tensor": 1,
    "reduce_scatter_tensor": 2,
    "all_to_all_single": 2,
}
"""Which argument of a method has the tensors of S, of those that the hook in C takes."""
_NESTED = {"all_gather": 0, "gather": 0, "scatter": 1, "reduce_scatter": 1}
_TAKES_LIST = {"all_reduce", "broadcast", "reduce", "all_reduce_coalesced", "send", "recv"}
_BLOCKING = "monitored_barrier"
"""Returns no Work, but when all ranks have come; gloo does it, in a group of any backend."""
_HAS_ROOT = {"broadcast", "reduce", "gather", "scatter"}


def _as_lists(given: Sequence[Any], op: WireOp) -> Sequence[Any]:
    """Bring the overloads that take lone tensors into the form of the operation's schema."""
    args = [(a,) if isinstance(a, torch.Tensor) else a for a in given]
    position = _NESTED.get(op.name)
    if position is not None and args[position] and isinstance(args[position][0], torch.Tensor):
        args[position] = [args[position]]
    return args


_OP_NAMES: dict[int, str] = {
    op.value: name for name, op in dist.ReduceOp.RedOpType.__members__.items()
}


def _names_by_hash() -> tuple[str, ...]:
    """Return the names of reduce ops by their hash, up to the first whose hash is not its number.

    Reading the hash is several times as fast as comparing ops or reading their number.
    """
    names: list[str] = []
    for name, op in dist.ReduceOp.RedOpType.__members__.items():
        if name == "PREMUL_SUM" or hash(dist.ReduceOp(op)) != len(names) or op.value != len(names):
            break
        names.append(name)
    return tuple(names)


OP_NAMES = _names_by_hash()
"""Names of reduce ops by their hash, which is the number of an op."""


def reduce_op_name(value: Any) -> str:
    """Return the name of what an operation got as its reduce op: "SUM", "MAX"..., "" for none.

    Reading it costs 2 us in the dispatcher's form, so the writer asks and not the hook. An enum of
    pybind11 looks through all its members for its name, in Python: hence the table.
    """
    if value is None:
        return ""
    if type(value) is int:  # from a kernel in C++
        return _OP_NAMES.get(value, "")
    value = getattr(value, "reduceOp", value)  # of the options that a method got
    if isinstance(value, torch.ScriptObject):
        if not value._has_method("op"):  # unknown in torch 2.4
            return ""
        return _OP_NAMES.get(value._get_method("op")(), "")
    op = getattr(value, "op", value)
    return _OP_NAMES.get(getattr(op, "value", -1), "")


def is_traced(tensor: torch.Tensor | None) -> bool:
    """Tell whether a call on `tensor` is only traced, or has none: nothing is sent then."""
    return tensor is None or tensor.is_meta or type(tensor).__name__ == "FakeTensor"
