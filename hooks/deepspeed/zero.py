"""ZeRO bucket flushes: how much, how full, why, and (through the context) which collectives.

The methods are stable since DeepSpeed 0.12; the bucket's attributes were renamed in 0.17.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import torch

from dsprof.hooks.base import After, Before, Hook, Target
from dsprof.hooks.deepspeed.owners import ENGINE, STAGE_1_2, STAGE_3
from dsprof.hooks.device.memory import add_device_sample
from dsprof.hooks.dtypes import DTYPES
from dsprof.recording.recorder.contexts import flushing
from dsprof.recording.recorder.hot_state import Context
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Flush
from dsprof.trace.scope import clock

_STAGE_3_FLUSH = "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads"
_IN_C = {"reduce_ipg_grads": ("comm_dtype", 0), _STAGE_3_FLUSH: ("communication_data_type", 3)}
"""Methods whose usual case is in C: argument that names the bucket, and stage; 0: 1 or 2."""
_EPILOGUE = "independent_gradient_partition_epilogue"

_SAMPLES_NS = 10_000_000
"""Least time between flushes at which the device's memory is read: that takes 15 to 100 us."""


class DeepSpeedZeroHook(Hook):
    """Records each flush of a gradient bucket."""

    name = "deepspeed.zero"
    targets = (
        Target(*STAGE_1_2, "reduce_ipg_grads", "flushes the buckets of stages 1 and 2"),
        Target(*STAGE_1_2, _EPILOGUE, "distinguishes the last flush from a full bucket"),
        Target(*STAGE_3, _STAGE_3_FLUSH, "flushes the bucket of stage 3"),
        Target(*STAGE_3, _EPILOGUE, "distinguishes the last flush from a full bucket"),
        Target(*ENGINE, "allreduce_bucket", "reduces all gradients at stage 0 and for BF16"),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._sampled_ns = 0

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        if target.name == _EPILOGUE:
            method = self.around(original, self._begin_epilogue, self._end_epilogue)
            return self.in_c("epilogue", original, method, ())
        find: dict[str, Callable[..., list[_Bucket]]] = {
            "reduce_ipg_grads": self._flushes_1_2,
            _STAGE_3_FLUSH: self._flushes_3,
            "allreduce_bucket": self._flushes_0,
        }
        method = self.around(original, *self._around_flush(find[target.name]))
        usual = _IN_C.get(target.name)
        if usual is None:
            return method
        sample = self._sample_device if torch.backends.cuda.is_built() else None
        dtype_name, stage = usual
        held = (DTYPES, dtype_name, sample)
        return self.in_c("flush", original, method, held, (stage,))

    def _sample_device(self, step: int) -> None:
        now_ns = clock()
        if now_ns - self._sampled_ns >= _SAMPLES_NS:
            self._sampled_ns = now_ns
            add_device_sample(self, "flush", step)

    def _begin_epilogue(self, *args: Any, **kwargs: Any) -> None:
        self.recorder.hot.in_epilogue = True

    def _end_epilogue(self, _: None) -> None:
        self.recorder.hot.in_epilogue = False

    def _around_flush(self, find: Callable[..., list[_Bucket]]) -> tuple[Before, After]:
        """Return what runs before and after a flush.

        Closures with few calls: it runs for each bucket, where each call is far from all caches.
        """
        progress, next_id = self.recorder.progress, self.recorder.ids.__next__
        hot = self.recorder.hot
        contexts, add, dtypes = self.recorder.contexts, self.recorder.outbox.add, DTYPES
        sample = self._sample_device if torch.backends.cuda.is_built() else None

        def begin(*args: Any, **kwargs: Any) -> _Flushing:
            thread, scope, flushes = get_ident(), progress.scope, []
            for stage, elements, dtype, parameters, capacity, slot in find(*args, **kwargs):
                name, item_bytes = dtypes[dtype]
                flush = Flush(  # by position: names take longer
                    next_id(),
                    stage,
                    elements,
                    clock(),
                    0,
                    capacity,
                    elements * item_bytes,
                    name,
                    parameters,
                    "end of backward" if hot.in_epilogue or stage == 0 else "full",
                    slot,
                    scope.step,
                    scope.micro_step,
                    scope.phase,
                    engine=scope.engine,
                    thread=thread,
                )
                flushes.append(flush)
            outer = contexts.current()
            number = flushes[0].id if flushes else next_id()
            contexts.become(flushing(outer, number, scope.site))
            return outer, flushes

        def end(begun: _Flushing) -> None:
            outer, flushes = begun
            contexts.become(outer)
            end_ns = clock()
            for flush in flushes:
                flush.end_ns = end_ns
                add(flush)
            if sample is not None and flushes:
                sample(progress.scope.step)

        return begin, end

    # -- what is about to be reduced ----------------------------------------------------------

    def _flushes_1_2(self, optimizer: Any, comm_dtype: torch.dtype | None = None) -> list[_Bucket]:
        """One bucket, or all that hold gradients."""
        stage = 2 if optimizer.partition_gradients else 1
        capacity = int(optimizer.reduce_bucket_size)
        has_slots = bool(optimizer.overlap_comm)
        buckets = getattr(optimizer, "ipg_buckets", None)
        if buckets is None:  # before DeepSpeed 0.17
            elements, count = optimizer.elements_in_ipg_bucket, len(optimizer.params_in_ipg_bucket)
            slot = optimizer.ipg_index if has_slots else -1
            dtype = optimizer.communication_data_type
            return [(stage, elements, dtype, count, capacity, slot)] if elements else []
        found = []
        for dtype in buckets if comm_dtype is None else (comm_dtype,):
            bucket = buckets[dtype]
            if bucket.elements:
                slot = bucket.index if has_slots else -1
                count = len(bucket.params)
                found.append((stage, bucket.elements, dtype, count, capacity, slot))
        return found

    def _flushes_3(
        self, optimizer: Any, communication_data_type: torch.dtype | None = None
    ) -> list[_Bucket]:
        """The bucket of stage 3, unless it is empty."""
        if hasattr(optimizer, "ipg_buckets"):
            dtype = communication_data_type
            bucket = optimizer.ipg_buckets[dtype]
            elements, count = bucket.elements, len(bucket.params)
        else:  # before DeepSpeed 0.17
            dtype = optimizer.communication_data_type
            elements, count = optimizer.elements_in_ipg_bucket, len(optimizer.params_in_ipg_bucket)
        capacity = int(optimizer.reduce_bucket_size)
        return [(3, elements, dtype, count, capacity, -1)] if elements else []

    def _flushes_0(
        self, engine: Any, bucket: Sequence[torch.Tensor], *args: Any, **kwargs: Any
    ) -> list[_Bucket]:
        """The gradients that an engine reduces itself, as one bucket without a bound."""
        elements = sum(tensor.numel() for tensor in bucket)
        dtype = engine.communication_data_type
        return [(0, elements, dtype, len(bucket), 0, -1)] if elements else []


_Bucket = tuple[int, int, torch.dtype, int, int, int]
"""Stage, elements, dtype, parameters, capacity (0: none), slot (-1: none)."""

_Flushing = tuple[Context, list[Flush]]
