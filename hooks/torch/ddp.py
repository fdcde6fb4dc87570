"""DistributedDataParallel: forward as a phase, and how gradients are laid out in buckets.

The reducer is C++ and issues its collectives itself; nothing of it is wrapped and no communication
hook is set. DDP's own log tells sizes and order of the buckets, so that the analysis finds them
again among the collectives of its group.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsprof.hooks.base import Hook, Target
from dsprof.hooks.torch.models import Models
from dsprof.hooks.torch.training_loop import Loop
from dsprof.hooks.wire.groups import Groups
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import BucketLayout, Phase
from dsprof.trace.scope import clock

_LOOKS = 6
"""DDP logs a layout a forward after it has made it, and what it measured a backward later."""

_DDP = ("torch.nn.parallel.distributed", "DistributedDataParallel")


@dataclass(slots=True, eq=False)
class _Model:
    """Facts of one model."""

    number: int
    looks: int = _LOOKS
    is_rebuilt: bool = False
    is_told: bool = False
    since_ns: int = 0


class DDPHook(Hook):
    """Follows models wrapped in DDP."""

    name = "ddp"
    targets = (Target(*_DDP, "forward", "phase forward; buckets are laid out anew before it"),)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._groups, self._loop = recorder.shared(Groups), recorder.shared(Loop)
        self._described = recorder.shared(Models)
        self._numbers = itertools.count()
        self._models: weakref.WeakKeyDictionary[Any, _Model] = weakref.WeakKeyDictionary()

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        return self.around(original, self._begin, self._end)

    def _begin(self, ddp: Any, *args: Any, **kwargs: Any) -> tuple[Any, Phase | None]:
        self._described.see("DDP", ddp, args, kwargs)
        return ddp, self._loop.begin_forward(ddp)

    def _end(self, begun: tuple[Any, Phase | None]) -> None:
        ddp, phase = begun
        self._loop.end_forward(phase)
        model = self._models.get(ddp)
        if model is None:
            model = self._models[ddp] = _Model(next(self._numbers))
            self._groups.roles[ddp.process_group] = "data"
        is_rebuilt = bool(getattr(ddp, "_has_rebuilt_buckets", False))
        if is_rebuilt != model.is_rebuilt:
            model.is_rebuilt = is_rebuilt
            model.since_ns = phase.start_ns if phase is not None else clock()
            model.is_told, model.looks = False, _LOOKS
        if model.looks and ddp.logger is not None:
            self._describe(ddp, model)

    def _describe(self, ddp: Any, model: _Model) -> None:
        """Give the writer the layout once DDP has logged it, and again when it has counted it."""
        logged = ddp.logger._get_ddp_logging_data()
        words, numbers = logged.strs_map, logged.ints_map
        nbytes = _numbers(words.get("rebuilt_bucket_sizes" if model.is_rebuilt else "bucket_sizes"))
        reduced = numbers.get("num_buckets_reduced", 0)
        is_counted = reduced == len(nbytes)
        model.looks = 0 if is_counted and nbytes else model.looks - 1
        if not nbytes or (model.is_told and not is_counted):
            return
        model.is_told = True
        members = words.get("rebuilt_per_bucket_param_indices", "") if model.is_rebuilt else ""
        self.recorder.outbox.define(
            BucketLayout(
                model=model.number,
                group=self._groups.state(ddp.process_group).group.id,
                nbytes=nbytes,
                parameters=[len(part.split()) for part in members.split(",") if part],
                capacity_bytes=numbers.get("bucket_cap_bytes", 0),
                is_rebuilt=model.is_rebuilt,
                since_ns=model.since_ns,
                gradient_as_bucket_view=bool(numbers.get("gradient_as_bucket_view", 0)),
                buckets_reduced=reduced,
                comm_hook=words.get("comm_hook", ""),
            )
        )


def _numbers(text: str | None) -> list[int]:
    return [int(part) for part in (text or "").split(",") if part.strip()]
