"""Copies between host and device that offloading makes: each as the span of the method around it.

A method may do a little more than copy (cast, take a norm, issue the gather that follows), and on
an accelerator a copy may go on after its method has returned.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import Any, NamedTuple

from dsprof.hooks.base import Before, Hook, Target, hide_from_dynamo, nothing
from dsprof.hooks.deepspeed.known_engines import KnownEngines
from dsprof.hooks.deepspeed.owners import COORDINATOR, STAGE_1_2, STAGE_3
from dsprof.hooks.patching import Patch, PatchSet
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Copy
from dsprof.trace.scope import Scope, clock

_GATHER = "_PartitionedParameterCoordinator__all_gather_params_"


class _Moved(NamedTuple):
    """A copy that a method is about to make."""

    what: str
    direction: str
    nbytes: int


_Begun = tuple[_Moved, Scope, int]


class DeepSpeedCopiesHook(Hook):
    """Records gradients that go to the host, and parameters that come from there."""

    name = "deepspeed.copies"
    targets = (
        Target(*STAGE_1_2, "async_accumulate_grad_in_cpu_via_gpu", "adds up gradients"),
        Target(*STAGE_1_2, "async_inplace_copy_grad_to_fp32_buffer_from_gpu", "copies gradients"),
        Target(*STAGE_1_2, "copy_grads_in_partition", "copies gradients kept in fp32"),
        Target(*STAGE_1_2, "_optimizer_step", "parameters are copied after it"),
        Target(*STAGE_1_2, "unscale_and_clip_grads", "parameters are copied before it"),
        Target(*STAGE_1_2, "reset_cpu_buffers", "parameters are copied before it"),
        Target(*STAGE_3, "partition_grads", "copies gradients"),
        Target(*STAGE_3, "_reassign_or_swap_out_partitioned_parameters", "copies parameters"),
        Target(*COORDINATOR, _GATHER, "copies parameters on their way to a gather"),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._on_host: set[int] = set()  # `ds_id` of parameters, which no two engines share
        self._after_step: _Begun | None = None
        self._late = PatchSet()
        recorder.shared(KnownEngines).append(self._learn)

    @property
    def _offloads(self) -> bool:
        """Whether any engine offloads anything."""
        return self.switch.in_python

    def patches(self, module: str) -> list[Patch]:
        """Patch only the gather until an engine offloads: most never do."""
        # Not later: another hook may then be around it.
        return [one for one in super().patches(module) if self._offloads or one.name == _GATHER]

    def uninstall(self) -> None:
        self._late.revert()

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        if target.name == _GATHER:
            timed = self._timed(original, self._gathered)
            return self.in_c("idle", original, self._if_offloading(original, timed), ())
        if target.name in _MEASURES:
            return self._timed(original, _MEASURES[target.name])
        if target.name == "_optimizer_step":
            return self.around(original, _which_group, self._begin_parameters)
        return self.around(original, self._end_parameters, nothing)

    def _if_offloading(
        self, original: Callable[..., Any], timed: Callable[..., Any]
    ) -> Callable[..., Any]:
        switch = self.switch

        # Called for each fetch, and another hook may be around it.
        @functools.wraps(original)
        def copies(*args: Any, **kwargs: Any) -> Any:
            return timed(*args, **kwargs) if switch.in_python else original(*args, **kwargs)

        hide_from_dynamo(copies)
        return copies

    def _timed(self, original: Callable[..., Any], measure: Before) -> Callable[..., Any]:
        """Wrap a method that copies; `measure` says what, from its arguments, or None."""

        def before(*args: Any, **kwargs: Any) -> _Begun | None:
            moved = measure(*args, **kwargs)
            return None if moved is None else (moved, self.recorder.progress.scope, clock())

        return self.around(original, before, self._record)

    def _record(self, begun: _Begun | None) -> None:
        if begun is not None:
            moved, scope, start_ns = begun
            copy = Copy(*moved, start_ns, clock(), scope.step, scope.micro_step, scope.phase)
            copy.thread = get_ident()
            self.recorder.outbox.add(copy)

    # -- stages 1 and 2: the parameters of a group, inside step() -----------------------------

    def _begin_parameters(self, token: tuple[Any, int]) -> None:
        optimizer, group = token
        if optimizer.cpu_offload and self.recorder.progress.scope.phase == "step":
            elements = optimizer.single_partition_of_fp32_groups[group].numel()
            nbytes = elements * optimizer.bit16_groups_flat[group].element_size()
            moved = _Moved("parameter", "to device", nbytes)
            self._after_step = moved, self.recorder.progress.scope, clock()

    def _end_parameters(self, *args: Any, **kwargs: Any) -> None:
        begun, self._after_step = self._after_step, None
        # The scope is replaced with each phase: another one belongs to a step that was left.
        if begun is not None and begun[1] is self.recorder.progress.scope:
            self._record(begun)

    def _learn(self, engine: Any, number: int) -> None:
        if _offloads(engine.zero_offload_param()):
            self._on_host |= {p.ds_id for p in engine.module.parameters() if hasattr(p, "ds_id")}
        elif not _offloads(engine.zero_offload_optimizer()):
            return
        if not self._offloads:
            self.switch.in_python = True
            for module in filter(sys.modules.__contains__, self.modules()):
                late = [one for one in self.patches(module) if one.name != _GATHER]
                self._late.apply(late)

    # -- stage 3: parameters that live on the host --------------------------------------------

    def _gathered(
        self, coordinator: Any, params: Iterable[Any], *args: Any, **kwargs: Any
    ) -> _Moved | None:
        nbytes = sum(
            p.ds_tensor.nbytes
            for p in params
            if p.ds_id in self._on_host and not p.ds_persist and p.ds_status.name == "NOT_AVAILABLE"
        )
        return _Moved("parameter", "to device", nbytes) if nbytes else None


def _offloads(section: Any) -> bool:
    """Tell whether a section of the configuration, if it is there, puts something elsewhere."""
    if section is None:
        return False
    # A name; only where a release keeps members of its enumeration they have one.
    return str(getattr(section.device, "value", section.device)) != "none"


def _which_group(optimizer: Any, group_no: int) -> tuple[Any, int]:
    return optimizer, group_no


def _accumulated(optimizer: Any, param: Any) -> _Moved:
    """Tell what is added up on the device with what the host kept of earlier micro-steps."""
    low_precision = getattr(optimizer, "low_precision_master_weights_and_grads", False)
    elements = _own(optimizer, param)[1] if low_precision else param.numel()
    nbytes = elements * param.element_size()
    if optimizer.micro_step_id > 0:
        return _Moved("gradient", "both ways", 2 * nbytes)
    return _Moved("gradient", "to host", nbytes)


def _reduced(optimizer: Any, param: Any) -> _Moved:
    group, elements = _own(optimizer, param)
    item_bytes = optimizer.single_partition_of_fp32_groups[group].element_size()
    return _Moved("gradient", "to host", elements * item_bytes)


def _kept_in_fp32(optimizer: Any, param: Any, group_idx: int | None = None) -> _Moved | None:
    """Tell the gradients that `_reduced` does not see: they were added up on the device."""
    is_compact = getattr(optimizer, "_use_compact_grad_partition_buffer", None)  # since 0.19
    if not optimizer.cpu_offload or is_compact is None:
        return None
    if not is_compact(_own(optimizer, param)[0]) or not _at_boundary(optimizer):
        return None
    return _reduced(optimizer, param)


def _own(optimizer: Any, param: Any) -> tuple[int, int]:
    """Return the group of a parameter, and how many of its elements this rank owns."""
    position = optimizer.grad_position[optimizer.get_param_id(param)]
    return position[0], position[-1]


def _partitioned(
    optimizer: Any, params_to_release: Any, grad_partitions: Sequence[Any]
) -> _Moved | None:
    """Tell what stage 3 keeps on the host, and at the last micro-step once more in fp32."""
    if not optimizer.offload_optimizer:
        return None
    elements = sum(grad.numel() for grad in grad_partitions)
    item_bytes = optimizer.gradient_accumulation_dtype.itemsize
    if _at_boundary(optimizer):
        item_bytes += optimizer.fp32_partitioned_groups_flat[0].element_size()
    return _Moved("gradient", "to host", elements * item_bytes)


def _updated(optimizer: Any, sub_group_id: int) -> _Moved | None:
    flat = optimizer.fp16_partitioned_groups_flat[sub_group_id]
    if not optimizer.offload_optimizer or flat is None:
        return None
    direction = "within host" if optimizer.offload_param else "to device"
    return _Moved("parameter", direction, flat.nbytes)


def _at_boundary(optimizer: Any) -> bool:
    """Say whether an optimizer step follows: a method since 0.19, before that an attribute."""
    boundary = optimizer.is_gradient_accumulation_boundary
    return bool(boundary() if callable(boundary) else boundary)


_MEASURES: dict[str, Before] = {
    "async_accumulate_grad_in_cpu_via_gpu": _accumulated,
    "async_inplace_copy_grad_to_fp32_buffer_from_gpu": _reduced,
    "copy_grads_in_partition": _kept_in_fp32,
    "partition_grads": _partitioned,
    "_reassign_or_swap_out_partitioned_parameters": _updated,
}
