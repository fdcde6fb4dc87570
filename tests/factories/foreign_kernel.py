"""Another tool that holds the dispatcher's slot for all_reduce."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def foreign_kernel() -> Iterator[None]:
    """Hold the BackendSelect kernel of c10d::allreduce_, passing calls on, while in the block."""
    library = torch.library.Library("c10d", "IMPL")
    overload = torch.ops.c10d.allreduce_.default
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    library.impl(
        "allreduce_",
        lambda keys, *args: overload._handle.redispatch_boxed(keys & below, *args),
        "BackendSelect",
        with_keyset=True,
    )
    try:
        yield
    finally:
        library._destroy()
