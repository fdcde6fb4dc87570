"""Communication that never reaches c10d: shared memory, SDMA, a site's own collective library."""

from __future__ import annotations

from collections.abc import Iterable
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist

from dsprof.hooks.call_sites import Sites
from dsprof.hooks.dtypes import DTYPES
from dsprof.hooks.wire.collectives import is_traced
from dsprof.hooks.wire.groups import Groups
from dsprof.hooks.wire.work import PythonWorks
from dsprof.recording.recorder.hot_state import Context
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective

_BY_POSITION = ("all_reduce", "inference_all_reduce", "all_reduce_coalesced")
_POSITIONS = {"group": 2, "async_op": 3}
"""deepspeed.comm gives these by position to three operations, and names them for all others."""

_ONE_RANK_OF_ALL = ("gather", "scatter")  # on most ranks the argument is one rank's part


class OffWire:
    """Records what a library did by means of its own, on the host's clock."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._groups = recorder.shared(Groups)
        self._sites = recorder.shared(Sites)
        self._works = PythonWorks(recorder)

    def release(self) -> None:
        """Put everything back."""
        self._works.release()

    def record(
        self,
        context: Context,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        handle: Any,
        start_ns: int,
        end_ns: int,
    ) -> None:
        """Record the request of `context`, which got `args` and gave `handle`."""
        op = context.requested
        given = _given("group", op, args, kwargs)
        if given is dist.GroupMember.NON_GROUP_MEMBER:  # torch warns, and does nothing
            return
        group = self._groups.state(given or dist.group.WORLD).group
        tensors = max(_tensors([*args, *kwargs.values()]), key=_nbytes, default=[])
        if any(map(is_traced, tensors)):
            return
        scale = group.size if op in _ONE_RANK_OF_ALL and len(tensors) == 1 else 1
        is_async = bool(_given("async_op", op, args, kwargs)) and hasattr(handle, "wait")
        scope = self._recorder.progress.scope
        record = Collective(
            id=next(self._recorder.ids),
            op=op,
            group=group.id,
            seq=0,
            nbytes=_nbytes(tensors) * scale,
            elements=sum(tensor.numel() for tensor in tensors) * scale,
            tensors=len(tensors),
            dtype=DTYPES[tensors[0].dtype][0] if tensors else "",
            is_async=is_async,
            site=self._sites.above(2),
            step=scope.step,
            micro_step=scope.micro_step,
            phase=scope.phase,
            engine=scope.engine,
            requested=op,
            request=context.request,
            flush=context.flush,
            fetch=context.fetch,
            coalesced=context.coalesced,
            thread=get_ident(),
            issue_ns=start_ns,
            return_ns=end_ns,
            on_wire=False,
        )
        if is_async:
            record.pending_ns = end_ns
            self._works.learn(handle)
            self._recorder.in_flight.expect(handle, record)
        else:
            record.done_ns = end_ns
            record.blocked_ns = end_ns - start_ns
            self._recorder.outbox.add(record)


def _given(name: str, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if op in _BY_POSITION and _POSITIONS[name] < len(args):
        return args[_POSITIONS[name]]
    return kwargs.get(name)


def _tensors(values: Iterable[Any]) -> list[list[torch.Tensor]]:
    """Return the tensors of each argument: the one with the most bytes is the whole array."""
    parts = [value if isinstance(value, (list, tuple)) else (value,) for value in values]
    return [[each for each in part if isinstance(each, torch.Tensor)] for part in parts]


def _nbytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
