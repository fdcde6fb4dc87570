"""ZeRO bucket flushes: how much, how full, why, and (through the context) which collectives.

The methods are stable since DeepSpeed 0.12; the bucket's attributes were renamed in 0.17.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NamedTuple

import torch

from dsprof.events import Context, Flush
from dsprof.hooks.base import Hook, Target
from dsprof.hooks.memory import add_device_sample
from dsprof.recorder import Recorder, clock

_STAGE_1_2 = ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer")
_STAGE_3 = ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3")
_ENGINE = ("deepspeed.runtime.engine", "DeepSpeedEngine")
_STAGE_3_FLUSH = "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads"
_EPILOGUE = "independent_gradient_partition_epilogue"


class _Bucket(NamedTuple):
    """What is about to be reduced."""

    stage: int
    elements: int
    capacity: int
    dtype: torch.dtype
    parameters: int
    slot: int


class DeepSpeedZeroHook(Hook):
    """Records each flush of a gradient bucket."""

    name = "deepspeed.zero"
    targets = (
        Target(*_STAGE_1_2, "reduce_ipg_grads", "flushes the buckets of stages 1 and 2"),
        Target(*_STAGE_1_2, _EPILOGUE, "tells a last flush from one of a full bucket"),
        Target(*_STAGE_3, _STAGE_3_FLUSH, "flushes the bucket of stage 3"),
        Target(*_STAGE_3, _EPILOGUE, "tells a last flush from one of a full bucket"),
        Target(*_ENGINE, "allreduce_bucket", "reduces all gradients at stage 0 and for BF16"),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._in_epilogue = False

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        if target.name == _EPILOGUE:
            return self.around(original, self._begin_epilogue, self._end_epilogue)
        find: dict[str, Callable[..., list[_Bucket]]] = {
            "reduce_ipg_grads": _buckets_1_2,
            _STAGE_3_FLUSH: _buckets_3,
            "allreduce_bucket": _buckets_0,
        }
        buckets = find[target.name]

        def before(owner: Any, *args: Any, **kwargs: Any) -> _Flushing:
            return self._begin(buckets(owner, *args, **kwargs))

        return self.around(original, before, self._end)

    def _begin_epilogue(self, *args: Any, **kwargs: Any) -> None:
        self._in_epilogue = True

    def _end_epilogue(self, _: None) -> None:
        self._in_epilogue = False

    def _begin(self, buckets: list[_Bucket]) -> _Flushing:
        recorder = self.recorder
        outer, flush = recorder.context(), next(recorder.ids)
        context = Context(outer.request, outer.requested, flush, outer.fetch)
        recorder.become(context)
        return outer, context, buckets, clock()

    def _end(self, flushing: _Flushing) -> None:
        outer, context, buckets, start_ns = flushing
        recorder = self.recorder
        recorder.become(outer)
        end_ns, flush = clock(), context.flush
        for bucket in buckets:
            recorder.add(self._record(flush, bucket, start_ns, end_ns))
            flush = next(recorder.ids)
        if buckets:
            add_device_sample(self, "flush", recorder.scope.step)

    def _record(self, flush: int, bucket: _Bucket, start_ns: int, end_ns: int) -> Flush:
        at_end = self._in_epilogue or bucket.stage == 0
        return Flush(
            id=flush,
            stage=bucket.stage,
            elements=bucket.elements,
            capacity=bucket.capacity,
            nbytes=bucket.elements * bucket.dtype.itemsize,
            dtype=str(bucket.dtype).removeprefix("torch."),
            parameters=bucket.parameters,
            cause="end of backward" if at_end else "full",
            slot=bucket.slot,
            scope=self.recorder.scope,
            start_ns=start_ns,
            end_ns=end_ns,
            thread=get_ident(),
        )


_Flushing = tuple[Context, Context, list[_Bucket], int]


def _buckets_1_2(optimizer: Any, comm_dtype: torch.dtype | None = None) -> list[_Bucket]:
    """Return the buckets that `reduce_ipg_grads` will reduce: one, or all that hold gradients."""
    stage = 2 if optimizer.partition_gradients else 1
    capacity = int(optimizer.reduce_bucket_size)
    has_slots = bool(optimizer.overlap_comm)
    if not hasattr(optimizer, "ipg_buckets"):  # before DeepSpeed 0.17
        elements, count = optimizer.elements_in_ipg_bucket, len(optimizer.params_in_ipg_bucket)
        slot = optimizer.ipg_index if has_slots else -1
        bucket = _Bucket(stage, elements, capacity, optimizer.communication_data_type, count, slot)
        return [bucket] if elements else []
    dtypes = [comm_dtype] if comm_dtype is not None else list(optimizer.ipg_buckets)
    return [
        _Bucket(
            stage,
            bucket.elements,
            capacity,
            dtype,
            len(bucket.params),
            bucket.index if has_slots else -1,
        )
        for dtype, bucket in ((dtype, optimizer.ipg_buckets[dtype]) for dtype in dtypes)
        if bucket.elements
    ]


def _buckets_3(optimizer: Any, communication_data_type: torch.dtype | None = None) -> list[_Bucket]:
    """Return the bucket that stage 3 will reduce; none when it is empty."""
    capacity = int(optimizer.reduce_bucket_size)
    if hasattr(optimizer, "ipg_buckets"):
        bucket = optimizer.ipg_buckets[communication_data_type]
        elements, count = bucket.elements, len(bucket.params)
        dtype = communication_data_type
    else:  # before DeepSpeed 0.17
        elements, count = optimizer.elements_in_ipg_bucket, len(optimizer.params_in_ipg_bucket)
        dtype = optimizer.communication_data_type
    return [_Bucket(3, elements, capacity, dtype, count, -1)] if elements else []


def _buckets_0(
    engine: Any, bucket: Sequence[torch.Tensor], *args: Any, **kwargs: Any
) -> list[_Bucket]:
    """Return the gradients that an engine reduces itself, as one bucket without a bound."""
    elements = sum(tensor.numel() for tensor in bucket)
    dtype = engine.communication_data_type
    return [_Bucket(0, elements, 0, dtype, len(bucket), -1)] if elements else []
