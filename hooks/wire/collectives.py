"""The wire: every collective that is really issued, once, whoever issues it.

`process_group.py` replaces methods of the class ProcessGroup: all that Python issues.
`dispatcher.py` puts a kernel below each operation of torch's dispatcher: all callers of a
ProcessGroup, C++ ones included. Where both are in place a method announces its collective, and the
kernel leaves it to the method, which has at hand what the kernel would have to unbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from time import thread_time_ns
from typing import Any

import torch

from dsprof.hooks.base import Hook, hide_from_dynamo
from dsprof.hooks.call_sites import Sites
from dsprof.hooks.dtypes import DTYPES
from dsprof.hooks.wire.groups import Groups
from dsprof.hooks.wire.layers import Layers
from dsprof.hooks.wire.operations import BLOCKING, WireOp
from dsprof.hooks.wire.reduce_ops import reduce_op_name
from dsprof.recording.recorder.in_flight import InFlight
from dsprof.recording.recorder.live_state import Kinds
from dsprof.recording.recorder.outbox import Outbox
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.dumps.state_file import PEER_SHIFT, UNFOLLOWED
from dsprof.trace.schema import Collective


class WireHook(Hook):
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
        is_of_host = name == BLOCKING
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
                reduce_op_name(reduce_op),
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
        own = (note, op.sized, reduce_op_name, Groups.state, InFlight.poll, Outbox.add, tell)
        hide_from_dynamo(*own, self.sites.above, self.sites.look_above, and_calls=True)
        return note


def is_traced(tensor: torch.Tensor | None) -> bool:
    """Tell whether a call on `tensor` is only traced, or has none: nothing is sent then."""
    return tensor is None or tensor.is_meta or type(tensor).__name__ == "FakeTensor"
