"""Compiles the kernels of `interception: native`, and tries them before they are put in place.

`python -m dsprof.hooks.native_build` is what `dsprof build` starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import cpp_extension

from dsprof.errors import DsprofError
from dsprof.hooks.c10d import positions
from dsprof.hooks.functional import WAIT
from dsprof.hooks.native import MODULE, SOURCE, library


def build(target: Path) -> None:
    """Write the kernels for this torch and this Python to `target`.

    Raises:
        DsprofError: a tool is missing, the compiler fails, what it made does not work, or it
            cannot be written.
    """
    _find_ninja()
    needed = (cpp_extension.get_cxx_compiler(), "ninja")
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        raise DsprofError(f"{' and '.join(missing)} cannot be found here; install it and try again")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            see_that_it_works(_compiled(folder))
            os.replace(Path(folder, f"{MODULE}.so"), target)
    except OSError as error:
        raise DsprofError(
            f"cannot write below {target.parent}: {error.strerror}; set TORCH_EXTENSIONS_DIR to "
            "a folder that can be written"
        ) from None


def _find_ninja() -> None:
    """Let torch find what pip has installed, in an environment that nobody has activated."""
    with contextlib.suppress(ImportError):
        import ninja

        os.environ["PATH"] = os.pathsep.join((ninja.BIN_DIR, os.environ.get("PATH", "")))


def _compiled(folder: str) -> ModuleType:
    try:
        kernels: ModuleType = cpp_extension.load(
            MODULE, str(SOURCE), extra_cflags=["-O2"], build_directory=folder
        )
    except (RuntimeError, ImportError, subprocess.SubprocessError) as error:
        said = str(error).splitlines()
        why = next((line for line in said if "error:" in line), said[0])
        raise DsprofError(f"cannot compile for torch {torch.__version__}: {why}") from None
    return kernels


def see_that_it_works(kernels: ModuleType) -> None:
    """See whether the kernels tell of a collective and of a wait what there is to tell.

    Raises:
        DsprofError: they do not.
    """
    told: list[tuple[Any, ...]] = []

    def noted(first: Any, second: Any, *more: Any) -> None:
        told.append((id(first[0]), second, *more[:5]))  # and when

    def waited(waited_for: Any, start_ns: int, end_ns: int, *more: Any) -> None:
        told.append((id(waited_for), *more))

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    collectives, waits = kernels.Kernels("c10d"), kernels.Kernels(WAIT[0])
    at = positions(torch.ops.c10d.allreduce_.default._schema)
    collectives.add_collective("allreduce_", at, lambda: True, noted)
    waits.add_wait(WAIT[1], id, waited)

    tensor, world = torch.ones(4), dist.group.WORLD
    work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
    torch.ops._c10d_functional.wait_tensor(tensor)
    collectives._destroy()
    waits._destroy()
    dist.all_reduce(tensor)
    dist.destroy_process_group()

    number, maximum = id(tensor), dist.ReduceOp.RedOpType.MAX.value
    if told != [(number, None, world, True, maximum, -1, work), (number, number, True)]:
        raise DsprofError(
            f"what was compiled for torch {torch.__version__} does not work, and is not used"
        )


def main() -> int:
    """Build, unless it is there; return the exit code."""
    target = library()
    try:
        if target.exists():
            print(f"The kernels for torch {torch.__version__} are there: {target}")
        else:
            print(f"Compiling for torch {torch.__version__}: half a minute", flush=True)
            build(target)
            print(f"{target}\nUse them with DSPROF_INTERCEPTION=native.")
    except DsprofError as error:
        print(f"dsprof: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
