"""A model and its input: parameters, dtype, autocast, and tokens of its first forwards.

Only shapes and dtypes are read, in a few forwards of training; nothing of the user's is kept.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch

from dsprof.hooks.dtypes import DTYPES
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Model

_LOOKS = 4
"""Forwards of training that are looked at; batches of later ones may be longer or shorter."""


class Models:
    """Describes each model that DDP, FSDP or DeepSpeed runs forward, in that thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._numbers = itertools.count()
        self._is_broken = False
        self._found: weakref.WeakKeyDictionary[Any, Model] = weakref.WeakKeyDictionary()
        recorder.trace_listeners.append(self._found.clear)

    def see(
        self, library: str, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> bool:
        """Look at a forward that begins; one of an evaluation is none.

        Returns:
            Whether nothing more is to be seen of this model in this trace.

        A model that cannot be described costs the run nothing else: the hooks go on without.
        """
        if self._is_broken:
            return True
        try:
            return self._look(library, module, args, kwargs)
        except Exception as error:
            self._is_broken = True
            self._recorder.fail("models", error)
            return True

    def _look(
        self, library: str, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> bool:
        found = self._found.get(module)
        if found is not None and len(found.tokens) >= _LOOKS:
            return True
        if not module.training:
            return False
        if found is None:
            found = self._found[module] = _described(next(self._numbers), library, module)
        found.tokens.append(_tokens([*args, *kwargs.values()]))
        if len(found.tokens) in (1, _LOOKS):
            # A copy: the writer encodes it while later forwards are added.
            self._recorder.outbox.define(msgspec.structs.replace(found, tokens=list(found.tokens)))
        return False


def _described(number: int, library: str, module: Any) -> Model:
    parameters = list(module.parameters())
    sizes: dict[str, int] = {}
    for parameter in parameters:
        dtype, _ = DTYPES[parameter.dtype]
        sizes[dtype] = sizes.get(dtype, 0) + _elements(parameter)
    is_whole = library != "FSDP1"  # which shows each rank its own share
    return Model(
        model=number,
        library=library,
        parameters=sum(sizes.values()) if is_whole else 0,
        trained=sum(_elements(p) for p in parameters if p.requires_grad) if is_whole else 0,
        dtype=max(sizes, key=lambda dtype: sizes[dtype], default=""),
        autocast=_autocast(parameters),
        has_experts=any(name.rpartition(".")[2] == "experts" for name, _ in module.named_modules()),
        tokens=[],
    )


def _elements(parameter: Any) -> int:
    """Return the elements of a parameter on all ranks: ZeRO-3 leaves an empty one."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def _autocast(parameters: Sequence[Any]) -> str:
    """Return the dtype of autocast around a forward, "" for none."""
    kind = parameters[0].device.type if parameters else "cpu"
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return ""
    return DTYPES[torch.get_autocast_dtype(kind)][0]


def _tokens(values: Sequence[Any]) -> int:
    """Return the elements of the first input that is a batch of token IDs, 0 if none is.

    Numbers behind features of another shape are no tokens: edges of a graph, labels of speech.
    """
    shape = None
    for value in values:
        if not isinstance(value, torch.Tensor):
            continue
        if value.is_floating_point():
            shape = shape or value.shape[:2]
        elif value.dtype == torch.int64 and value.dim() == 2:
            return value.numel() if shape in (None, value.shape) else 0
    return 0
