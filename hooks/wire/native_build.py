"""Compiles the kernels of `dsprof.hooks.wire.native`, and tries them before they are put in place.

`python -m dsprof.hooks.wire.native_build` is what `dsprof build` starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from dsprof.errors import DsprofError
from dsprof.files.ownership import why_untrusted
from dsprof.hooks.wire.functional import WAIT
from dsprof.hooks.wire.native import MODULE, SOURCES, kernels_path, seal
from dsprof.trace.scope import clock


def build(target: Path) -> None:
    """Write the kernels for this torch and this Python to `target`, whole or not at all.

    Raises:
        DsprofError: they do not compile, do not work, or cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        building = f"{MODULE}_building_"
        with tempfile.TemporaryDirectory(prefix=building, dir=target.parent) as folder:
            verify(_compiled(folder))
            built = Path(folder, f"{MODULE}.so")
            library = built.read_bytes()
            with built.open("ab") as file:
                file.write(seal(library))
                file.flush()
                os.fchmod(file.fileno(), 0o755)  # what others can write is not loaded
                os.fsync(file.fileno())
            os.replace(built, target)
            why = why_untrusted(target)
    except OSError as error:
        raise DsprofError(
            f"cannot write below {target.parent}: {error.strerror}; set TORCH_EXTENSIONS_DIR to "
            "a folder that can be written"
        ) from None
    if why:
        raise DsprofError(
            f"{target} would not be loaded because {why}; set TORCH_EXTENSIONS_DIR to a folder "
            "that only you can write"
        )


def check_tools() -> None:
    """See whether there is what compiling takes.

    Raises:
        DsprofError: there is not.
    """
    with contextlib.suppress(ImportError):  # pip's, in an environment that is not activated
        import ninja

        os.environ["PATH"] = os.pathsep.join((ninja.BIN_DIR, os.environ.get("PATH", "")))
    from torch.utils import cpp_extension  # takes long, and training imports this module

    for tool, source in (
        (cpp_extension.get_cxx_compiler(), "a C++ compiler, or name yours in CXX"),
        ("ninja", "it with pip"),
    ):
        if shutil.which(tool.split()[0]) is None:  # CXX may be "ccache c++"
            raise DsprofError(f"{tool} cannot be found here: install {source}, and try again")


def _compiled(folder: str) -> ModuleType:
    from torch.utils import cpp_extension

    try:
        kernels: ModuleType = cpp_extension.load(
            MODULE, [*map(str, SOURCES)], extra_cflags=["-O2"], build_directory=folder
        )
    except (RuntimeError, ImportError, subprocess.SubprocessError) as error:
        said = str(error).splitlines() or [type(error).__name__]
        why = next((line for line in said if "error:" in line), said[0])
        raise DsprofError(f"cannot compile for torch {torch.__version__}: {why}") from None
    return kernels


def verify(kernels: ModuleType) -> None:
    """Check that the kernels report a collective and a wait completely.

    Raises:
        DsprofError: they do not.
    """
    try:
        with _fake_group():
            works = _tells_all(kernels) and _notices(kernels)
            why = "they do not say what happened"
    except Exception as error:
        works, why = False, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if not works:
        raise DsprofError(
            f"kernels that were compiled for torch {torch.__version__} do not work ({why}) and are "
            "not kept; stay with interception: auto, and please report it"
        )


@contextlib.contextmanager
def _fake_group() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.set_debug_level(dist.DebugLevel.OFF)  # it would wrap the group
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _tells_all(kernels: ModuleType) -> bool:
    told: list[tuple[Any, ...]] = []
    times_ns = [clock()]

    def begin() -> bool:
        return True

    def noted(first: Any, second: Any, *more: Any) -> None:
        told.append((id(first[0]), second, *more[:5]))
        times_ns.extend(more[5:])

    def waited(waited_for: Any, start_ns: int, end_ns: int, *more: Any) -> None:
        told.append((id(waited_for), *more))
        times_ns.extend((start_ns, end_ns))

    tensor, world = torch.ones(4), dist.group.WORLD
    collective, wait = ("c10d", "allreduce_"), tuple(WAIT.split("::"))
    try:
        kernels.watch_collective(*collective, begin, noted, told.append)
        kernels.watch_wait(*wait, id, waited, told.append)
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)
        torch.ops._c10d_functional.wait_tensor(tensor)
    finally:
        kernels.unwatch(*collective, begin)
        kernels.unwatch(*wait, id)
    dist.all_reduce(tensor)
    times_ns.append(clock())

    number, maximum = id(tensor), dist.ReduceOp.RedOpType.MAX.value
    expected = [(number, None, world, True, maximum, -1, work), (number, number, True)]
    return told == expected and times_ns == sorted(times_ns)


def _notices(kernels: ModuleType) -> bool:
    noticed: list[Any] = []
    operation, operations = ("_c10d_functional", "broadcast"), torch.ops._c10d_functional

    def communicate() -> None:
        issued = operations.broadcast(torch.ones(4), 0, dist.group.WORLD.group_name)
        operations.wait_tensor(issued)

    def begin() -> None:
        noticed.append("use")

    kernels.watch_use(*operation, begin, print, noticed.append)
    try:
        communicate()
    finally:
        kernels.unwatch(*operation, begin)
    communicate()
    return noticed == ["use"]


def main() -> int:
    """Build, and return the exit code."""
    try:
        target = kernels_path()
        check_tools()
        print(f"Compiling for torch {torch.__version__}: half a minute", flush=True)
        build(target)
    except DsprofError as error:
        print(f"dsprof: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"dsprof: {error} Set TORCH_EXTENSIONS_DIR.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(f"{target}\nRecording uses them from now on.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
