"""Functional collectives: that they are in use, and their wait in `_c10d_functional::wait_tensor`.

A functional collective gives its Work to a registry in C++, under the storage of each tensor that
it writes to; `wait_tensor` takes the Works of its tensor's storage out and waits for them. Here
records are found the same way: by the address of the storage, which cannot be used again while the
registry has the entry.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from dsprof.hooks.base import Hook, hide_from_dynamo
from dsprof.hooks.wire.collectives import is_traced
from dsprof.hooks.wire.layers import KEY, Layers, check_slot
from dsprof.recording.recorder.in_flight import NOTICEABLE_NS
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective
from dsprof.trace.scope import clock

_NAMESPACES = ("_c10d_functional", "_dtensor")
_PREFIXES = tuple(f"{namespace}::" for namespace in _NAMESPACES)
WAIT = "_c10d_functional::wait_tensor"
_SILENT = (WAIT, "_c10d_functional::_wrap_tensor_autograd")  # of these, what issues nothing

_REMEMBERED = 64
"""Storages whose collective was waited for: waiting again finds nothing, however long it takes."""


class FunctionalHook(Hook):
    """Times `wait_tensor`, in eager mode and in compiled graphs, from the first use on.

    Until a functional collective is issued, what a collective writes to is not needed.
    """

    name = "functional"

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._layers = recorder.shared(Layers)
        self._libraries: list[Any] = []
        self._beginning = threading.RLock()
        self._waited_for: deque[int] = deque(maxlen=_REMEMBERED)
        self._in_use = False

    def modules(self) -> tuple[str, ...]:
        return ("torch.distributed",)

    def install(self, module: str) -> None:
        """Register the kernels.

        Raises:
            RuntimeError: another tool already holds the kernel of an operation.
        """
        try:
            self._register()
        except Exception:
            self._layers.on_cpp()  # the first functional collective would not be noticed
            raise

    def _register(self) -> None:
        names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith(_PREFIXES)]
        for name in names:
            check_slot(name, "waits for functional collectives")
        self._put_in([name for name in names if name not in _SILENT])

    def _put_in(self, issuing: list[str]) -> None:
        kernels = {**{name: self._issue(name) for name in issuing}, WAIT: self._wait()}
        for namespace in _NAMESPACES:
            library = torch.library.Library(namespace, "IMPL")
            self._libraries.append(library)
            for name in (n for n in kernels if _namespace(n) == namespace):
                library.impl(name.partition("::")[2], kernels[name], KEY, with_keyset=True)

    def uninstall(self) -> None:
        while self._libraries:
            self._libraries.pop()._destroy()

    def _issue(self, name: str) -> Callable[..., Any]:
        """Return a kernel that notices the first functional collective, before it is issued."""
        redispatch, below = _redispatch(name)
        notice = self._notice()

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._in_use:
                notice()
            return redispatch(keyset & below, *args, **kwargs)

        hide_from_dynamo(kernel)
        return kernel

    def _notice(self) -> Callable[[], None]:
        """Return what a kernel calls before what may be the first functional collective."""
        recorder = self.recorder

        def notice() -> None:
            try:
                if not (self._in_use or self.broken) and (recorder.hot.recording or recorder.arm()):
                    self._begin()
            except Exception as error:
                self.fail(error)

        hide_from_dynamo(notice)
        hide_from_dynamo(FunctionalHook._begin, and_calls=True)
        return notice

    def _begin(self) -> None:
        """Follow what functional collectives issue; threads that issue meanwhile wait for it."""
        with self._beginning:
            if not self._in_use:
                self._layers.on_cpp()
                self.recorder.in_flight.followers += (remember_outputs,)
                self._in_use = True
                self._noticed()

    def _noticed(self) -> None:
        """Notice no more; kernels in Python cannot be taken out while others communicate."""

    def _wait(self) -> Callable[..., Any]:
        redispatch, below = _redispatch(WAIT)
        recorder, in_flight = self.recorder, self.recorder.in_flight

        def kernel(keyset: Any, tensor: torch.Tensor) -> Any:
            if not recorder.hot.recording or self.broken or is_traced(tensor):
                return redispatch(keyset & below, tensor)
            opened = in_flight.device.open() if in_flight.device is not None else None
            start_ns = clock()
            try:
                result = redispatch(keyset & below, tensor)
            except BaseException:
                self._waited(tensor, start_ns, clock(), opened, False)
                raise
            self._waited(tensor, start_ns, clock(), opened, True)
            return result

        hide_from_dynamo(kernel)
        hide_from_dynamo(FunctionalHook._waited, and_calls=True)
        return kernel

    def _waited(
        self, tensor: torch.Tensor, start_ns: int, end_ns: int, opened: Any, finished: bool
    ) -> None:
        try:
            in_flight, address = self.recorder.in_flight, storage(tensor)
            records = in_flight.take_outputs(address)
            in_flight.waited_in_cpp(records, start_ns, end_ns, finished=finished, opened=opened)
            for record in records:
                self._waited_for.extend(record.outputs)
            if not records and address not in self._waited_for:
                in_flight.unmatched_waits += end_ns - start_ns > NOTICEABLE_NS
        except Exception as error:
            self.fail(error)


def _namespace(name: str) -> str:
    return name.partition("::")[0]


def _redispatch(name: str) -> tuple[Callable[..., Any], Any]:
    """Return what calls an operation further down, and the keys that are left there."""
    operation, _, overload = name.partition("::")[2].partition(".")
    packet = getattr(getattr(torch.ops, _namespace(name)), operation)
    below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
    return getattr(packet, overload or "default")._handle.redispatch_boxed, below


def remember_outputs(record: Collective, outputs: Any) -> None:
    """Note which storages a collective writes to: a tensor, or a list of tensors."""
    if isinstance(outputs, torch.Tensor):
        outputs = (outputs,)
    tensors = outputs if isinstance(outputs, (list, tuple)) else ()  # a barrier has none
    record.outputs = tuple(storage(t) for t in tensors if isinstance(t, torch.Tensor))


def storage(tensor: torch.Tensor) -> int:
    """Return the address of the storage of `tensor`, 0 where it has none (sparse)."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0
