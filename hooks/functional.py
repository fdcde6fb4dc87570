"""Functional collectives: the wait that `_c10d_functional::wait_tensor` does in C++.

A functional collective gives its Work to a registry in C++, under the storage of each tensor that
it writes to; `wait_tensor` takes the Works of its tensor's storage out and waits for them. Here
records are found the same way: by the address of the storage, which cannot be used again while the
registry has the entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from dsprof.events import Collective
from dsprof.hooks.base import Hook, hide_from_dynamo
from dsprof.hooks.c10d import is_traced
from dsprof.recorder import NOTICEABLE_NS, Recorder, clock

_KEY = "BackendSelect"
_NAME = "_c10d_functional::wait_tensor"

_REMEMBERED = 64
"""Storages whose collective was waited for: waiting again finds nothing, however long it takes."""


class FunctionalWaitHook(Hook):
    """Times `wait_tensor`, in eager mode and in compiled graphs."""

    name = "functional"

    _library: Any = None

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._waited_for: deque[int] = deque(maxlen=_REMEMBERED)

    def modules(self) -> tuple[str, ...]:
        return ("torch.distributed._functional_collectives",)

    def install(self, module: str) -> None:
        """Register the kernel.

        Raises:
            RuntimeError: another tool already holds the kernel of the operation.
        """
        if torch._C._dispatch_has_kernel_for_dispatch_key(_NAME, _KEY):
            raise RuntimeError(f"another tool holds the {_KEY} kernel of {_NAME}")
        self._library = torch.library.Library("_c10d_functional", "IMPL")
        self._library.impl("wait_tensor", self._kernel(), _KEY, with_keyset=True)
        self.recorder.followers += (remember_outputs,)

    def uninstall(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _kernel(self) -> Callable[..., Any]:
        redispatch = torch.ops._c10d_functional.wait_tensor.default._handle.redispatch_boxed
        below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, _KEY))
        recorder = self.recorder

        def kernel(keyset: Any, tensor: torch.Tensor) -> Any:
            if not recorder.recording or self.broken or is_traced(tensor):
                return redispatch(keyset & below, tensor)
            opened = recorder.device.open() if recorder.device is not None else None
            start_ns = clock()
            try:
                result = redispatch(keyset & below, tensor)
            except BaseException:
                self._waited(tensor, start_ns, clock(), opened, finished=False)
                raise
            self._waited(tensor, start_ns, clock(), opened, finished=True)
            return result

        hide_from_dynamo(kernel)
        hide_from_dynamo(FunctionalWaitHook._waited, and_calls=True)
        return kernel

    def _waited(
        self, tensor: torch.Tensor, start_ns: int, end_ns: int, opened: Any, *, finished: bool
    ) -> None:
        try:
            recorder, address = self.recorder, storage(tensor)
            records = recorder.take_outputs(address)
            recorder.waited_in_cpp(records, start_ns, end_ns, finished=finished, opened=opened)
            for record in records:
                self._waited_for.extend(record.outputs)
            if not records and address not in self._waited_for:
                recorder.unmatched_waits += end_ns - start_ns > NOTICEABLE_NS
        except Exception as error:
            self.fail(error)


def remember_outputs(record: Collective, outputs: Any) -> None:
    """Note which storages a collective writes to: a tensor, or a list of tensors."""
    if isinstance(outputs, torch.Tensor):
        outputs = (outputs,)
    tensors = outputs if isinstance(outputs, (list, tuple)) else ()  # a barrier has none
    record.outputs = tuple(storage(t) for t in tensors if isinstance(t, torch.Tensor))


def storage(tensor: torch.Tensor) -> int:
    """Return the address of the storage of `tensor`, 0 where it has none (sparse)."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0
