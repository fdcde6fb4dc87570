"""FSDP1 and FSDP2: which module's parameters are gathered, resharded, and whose gradients reduced.

Methods that FSDP2 binds when a module is wrapped (`_pre_forward`) are not patched; what they call
by name at each pass is watched, so it does not matter whether dsprof came first.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, NamedTuple

import torch

from dsprof.hooks.base import After, Before, Hook, Target, nothing
from dsprof.hooks.dtypes import DTYPES
from dsprof.hooks.releases import is_before
from dsprof.hooks.torch.models import Models
from dsprof.hooks.torch.training_loop import Loop
from dsprof.hooks.wire.groups import Groups
from dsprof.recording.recorder.contexts import flushing
from dsprof.recording.recorder.hot_state import Context
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Fetch, Flush, Phase
from dsprof.trace.scope import clock

_IS_COMPOSABLE = is_before("torch", "2.6")
_V2 = f"torch.distributed.{'_composable.fsdp' if _IS_COMPOSABLE else 'fsdp._fully_shard'}"
_PREFETCH = "_prefetch_unshard" if is_before("torch", "2.5") else "_backward_prefetch"
_GROUP = (f"{_V2}._fsdp_param_group", "FSDPParamGroup")
_STATE = (f"{_V2}._fsdp_state", "FSDPState")
_V1 = ("torch.distributed.fsdp._runtime_utils", "")
_V1_MODULE = ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")


class _Unit(NamedTuple):
    """A unit that FSDP all-gathers and reduces as one."""

    library: str
    module: str
    elements: int
    dtype: torch.dtype
    parameters: int


class _Doing(NamedTuple):
    """A fetch or flush in progress."""

    unit: _Unit
    kind: str  # "fetch", "prefetch", "release" or "flush"
    outer: Context
    context: Context
    start_ns: int
    owner: Any


class FSDPHook(Hook):
    """Records unshards and reshards as fetches and releases, reductions as flushes."""

    name = "fsdp"
    targets = (
        Target(*_STATE, "_root_pre_forward", "phase forward", "forward phases of FSDP2"),
        Target(*_STATE, "_register_pre_backward_hook", "ends it", "ends of FSDP2's forwards"),
        Target(*_GROUP, "unshard", "all-gathers parameters", "all-gathers of FSDP2 units"),
        Target(*_GROUP, "wait_for_unshard", "waits for parameters", "waits for FSDP2 units"),
        Target(*_GROUP, "reshard", "reshards parameters", "reshards of FSDP2 units"),
        Target(*_GROUP, "post_backward", "reduces gradients", "reductions of FSDP2 units"),
        Target(*_GROUP, _PREFETCH, "marks a prefetch", "prefetches of FSDP2 units"),
        Target(*_V1_MODULE, "forward", "phase forward", "forward phases of FSDP1"),
        Target(*_V1, "_unshard", "all-gathers parameters", "all-gathers of FSDP1 units"),
        Target(*_V1, "_reshard", "reshards parameters", "reshards of FSDP1 units"),
        Target(*_V1, "_reduce_grad", "reduces gradients", "reductions of FSDP1 units"),
        Target(*_V1, "_reduce_grad_no_shard", "reduces them", "reductions without shards of FSDP1"),
        Target(*_V1, "_prefetch_handle", "marks a prefetch", "prefetches of FSDP1 units"),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._loop, self._groups = recorder.shared(Loop), recorder.shared(Groups)
        self._models = recorder.shared(Models)
        self._units: weakref.WeakKeyDictionary[Any, _Unit] = weakref.WeakKeyDictionary()
        self._pending: weakref.WeakKeyDictionary[Any, _Doing] = weakref.WeakKeyDictionary()
        self._root: weakref.ref[Any] | None = None  # the state whose forward is the phase
        self._prefetching: set[int] = set()  # threads

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        around: dict[str, tuple[Before, After]] = {
            "_root_pre_forward": (self._begin_root, nothing),
            "_register_pre_backward_hook": (self._end_root, nothing),
            "forward": (self._begin_root_1, self._loop.end_forward),
            "unshard": (self._begin_unshard_2, self._end_unshard_2),
            "wait_for_unshard": (self._begin_wait, self._end_wait),
            "reshard": (self._begin_reshard_2, self._end_reshard_2),
            "post_backward": (self._begin_reduce_2, self._end),
            "_unshard": (self._begin_unshard_1, self._end),
            "_reshard": (self._begin_reshard_1, self._end),
            "_reduce_grad": (self._begin_reduce_1, self._end),
            "_reduce_grad_no_shard": (self._begin_reduce_1, self._end),
            _PREFETCH: (self._begin_prefetch, self._end_prefetch),
            "_prefetch_handle": (self._begin_prefetch, self._end_prefetch),
        }
        return self.around(original, *around[target.name])

    # -- forward as a phase -------------------------------------------------------------------

    def _begin_root_1(self, module: Any, *args: Any, **kwargs: Any) -> Phase | None:
        phase = self._loop.begin_forward(module)
        # Recording may begin within a forward, whose outermost module is the model.
        if phase is not None and module._is_root is not False:
            self._models.see("FSDP1", module, args, kwargs)
        return phase

    def _begin_root(self, state: Any, module: Any, args: Any, kwargs: Any) -> None:
        if self._loop.begin_forward(module) is None:
            return
        # The first all-gather begins the recording, and the root's forward is open by then.
        root = state._state_ctx.iter_forward_root or state
        self._root = weakref.ref(root)
        if root is state:
            self._models.see("FSDP2", module, args, kwargs)

    def _end_root(self, state: Any, *args: Any, **kwargs: Any) -> None:
        if self._root is not None and self._root() is state:
            self._root = None
            self._loop.end_forward(self._loop.forward)

    # -- FSDP2 --------------------------------------------------------------------------------

    def _begin_unshard_2(self, group: Any, *args: Any, **kwargs: Any) -> _Doing | None:
        if group._all_gather_result is not None or group.is_unsharded:
            return None
        return self._begin(self._unit_2(group), self._fetching(), group)

    def _end_unshard_2(self, doing: _Doing | None) -> None:
        """Leave a fetch open: FSDP waits for it later, at once unless it is a prefetch."""
        if doing is None:
            return
        self.recorder.contexts.become(doing.outer)
        if doing.owner._all_gather_result is None:
            return
        if doing.kind == "prefetch":
            self._record(doing, 0)
        else:
            self._pending[doing.owner] = doing._replace(owner=None)

    def _begin_wait(self, group: Any) -> _Doing | None:
        if not group._all_gather_result:
            return None
        pending = self._pending.pop(group, None)
        unit, fetch = self._unit_2(group), pending.context.fetch if pending else 0
        begun = self._begin(unit, "fetch", None, fetch)
        return begun._replace(start_ns=pending.start_ns) if pending else begun

    def _end_wait(self, doing: _Doing | None) -> None:
        if doing is not None:
            self.recorder.contexts.become(doing.outer)
            self._record(doing, clock() - doing.start_ns)

    def _begin_reshard_2(self, group: Any) -> _Doing | None:
        if not group.is_unsharded:
            return None
        return self._begin(self._unit_2(group), "release", group)

    def _end_reshard_2(self, doing: _Doing | None) -> None:
        if doing is not None:
            self.recorder.contexts.become(doing.outer)
            if not doing.owner.is_unsharded:
                self._record(doing, 0)

    def _begin_reduce_2(self, group: Any, *args: Any, **kwargs: Any) -> _Doing:
        unit = self._unit_2(group)
        # The gradients of frozen parameters, as of a model beside its adapters, are not reduced.
        trained = [param for param in group.fsdp_params if param.sharded_param.requires_grad]
        if len(trained) < unit.parameters:
            elements = sum(param._orig_size.numel() for param in trained)
            unit = unit._replace(elements=elements, parameters=len(trained))
        return self._begin(unit, "flush")

    def _unit_2(self, group: Any) -> _Unit:
        unit = self._units.get(group)
        if unit is None or not unit.module:
            params = group.fsdp_params
            elements = sum(param._orig_size.numel() for param in params)
            dtype = params[0].sharded_param.dtype if params else torch.float32
            name = group._module_fqn
            name = "(root)" if name == "" else name or ""
            unit = _Unit("FSDP2", name, elements, dtype, len(params))
            self._units[group] = unit
            self._name_groups(
                getattr(group.mesh_info, "shard_process_group", None),
                getattr(group.mesh_info, "replicate_process_group", None),
            )
        return unit

    # -- FSDP1 --------------------------------------------------------------------------------

    def _begin_unshard_1(self, state: Any, handle: Any, *args: Any) -> _Doing | None:
        if not handle or not handle.needs_unshard():
            return None
        return self._begin(self._unit_1(state, handle), self._fetching())

    def _begin_reshard_1(self, state: Any, handle: Any, free: bool = True) -> _Doing | None:
        if not free or not handle.uses_sharded_strategy or handle.needs_unshard():
            return None
        return self._begin(self._unit_1(state, handle), "release")

    def _begin_reduce_1(self, state: Any, handle: Any) -> _Doing:
        return self._begin(self._unit_1(state, handle), "flush")

    def _unit_1(self, state: Any, handle: Any) -> _Unit:
        unit = self._units.get(handle)
        if unit is None:
            flat = handle.flat_param
            names = _names_1(state, flat)
            elements = sum(shape.numel() for shape in flat._shapes)
            unit = _Unit("FSDP1", _module_of(names), elements, flat.dtype, len(names))
            self._units[handle] = unit
            self._name_groups(state.process_group, getattr(state, "_inter_node_pg", None))
        return unit

    # -- both ---------------------------------------------------------------------------------

    def _name_groups(self, shard: Any, replicate: Any) -> None:
        roles = self._groups.roles
        if shard is not None:
            roles[shard] = "data" if replicate is None else "shard"
        if replicate is not None:
            roles[replicate] = "replicate"

    def _begin_prefetch(self, *args: Any, **kwargs: Any) -> None:
        self._prefetching.add(get_ident())

    def _end_prefetch(self, _: None) -> None:
        self._prefetching.discard(get_ident())

    def _fetching(self) -> str:
        return "prefetch" if get_ident() in self._prefetching else "fetch"

    def _begin(self, unit: _Unit, kind: str, owner: Any = None, number: int = 0) -> _Doing:
        recorder = self.recorder
        outer, number = recorder.contexts.current(), number or next(recorder.ids)
        if kind == "flush":
            context = flushing(outer, number, recorder.progress.scope.site)
        else:
            context = Context(outer.request, outer.requested, outer.flush, number)
        recorder.contexts.become(context)
        return _Doing(unit, kind, outer, context, clock(), owner)

    def _end(self, doing: _Doing | None) -> None:
        if doing is None:
            return
        self.recorder.contexts.become(doing.outer)
        # A backward of FSDP2 that reduces nothing, as in a micro-step without communication.
        if doing.kind != "flush" or doing.context.wire_ops:
            self._record(doing, clock() - doing.start_ns if doing.kind == "fetch" else 0)

    def _record(self, doing: _Doing, wait_ns: int) -> None:
        unit, scope = doing.unit, self.recorder.progress.scope
        held: dict[str, Any] = {
            "elements": unit.elements,
            "step": scope.step,
            "micro_step": scope.micro_step,
            "phase": scope.phase,
            "engine": scope.engine,
            "start_ns": doing.start_ns,
            "end_ns": clock(),
            "thread": get_ident(),
            "library": unit.library,
            "module": unit.module,
        }
        if doing.kind != "flush":
            number = doing.context.fetch
            self.recorder.outbox.add(Fetch(id=number, kind=doing.kind, wait_ns=wait_ns, **held))
            return
        flush = Flush(
            id=doing.context.flush,
            stage=-1,
            capacity=0,
            nbytes=unit.elements * unit.dtype.itemsize,
            dtype=DTYPES[unit.dtype][0],
            parameters=unit.parameters,
            cause="end of module",
            slot=-1,
            **held,
        )
        self.recorder.outbox.add(flush)


def _names_1(state: Any, flat: Any) -> list[str]:
    """Return the names of a unit's parameters; each has its own with `use_orig_params`."""
    of = state._exec_order_data.param_to_fqn
    own = [name for parameter in flat._params or () for name in of.get(parameter, ())]
    return of.get(flat) or own or list(flat._fqns)


def _module_of(names: list[str]) -> str:
    """Return the module that all these parameters are in: `layers.0` of `layers.0.weight`..."""
    levels = zip(*(name.split(".")[:-1] for name in names), strict=False)
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, levels)
    return ".".join(level[0] for level in shared) or "(root)"
