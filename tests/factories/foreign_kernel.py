"""Another tool that holds the dispatcher's slot of an operation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def foreign_kernel(namespace: str = "c10d", name: str = "allreduce_") -> Iterator[None]:
    """Hold the BackendSelect kernel of an operation, passing calls on, while in the block."""
    library = torch.library.Library(namespace, "IMPL")
    overload = getattr(getattr(torch.ops, namespace), name).default
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    library.impl(
        name,
        lambda keys, *args: overload._handle.redispatch_boxed(keys & below, *args),
        "BackendSelect",
        with_keyset=True,
    )
    try:
        yield
    finally:
        library._destroy()
