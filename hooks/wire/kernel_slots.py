"""The place of a kernel in torch's dispatcher: one tool can have it."""

from __future__ import annotations

import torch

KEY = "BackendSelect"

NATIVE = "dsprof/hooks/wire/kernels.cpp"
"""What kernels of ours in C++ say of themselves; they stay, and pass everything on."""


def check_slot(operation: str, carries: str) -> None:
    """See whether a kernel can be put below an operation, such as `c10d::allreduce_`.

    `carries` is what is not recorded without it, in the plural.

    Raises:
        RuntimeError: another tool has one there.
    """
    if torch._C._dispatch_has_kernel_for_dispatch_key(operation, KEY):
        kernels = torch._C._dispatch_dump(operation).splitlines()  # the one in use comes first
        if NATIVE not in next((line for line in kernels if line.startswith(KEY)), ""):
            why = f"another tool holds the {KEY} kernel of {operation}"
            raise RuntimeError(f"{carries} are not recorded: {why}")
