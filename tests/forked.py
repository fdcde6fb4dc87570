"""Python that begins where `import torch`, which takes seconds, is done: forked, not started."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

TORCHRUN = "torch.distributed.run"

LAUNCHERS = multiprocessing.get_context("forkserver")
# The rest are of what torch imports as training begins; dsprof hooks none of them.
LAUNCHERS.set_forkserver_preload(
    [TORCHRUN, "networkx", "jinja2", "torch.fx.experimental.symbolic_shapes"]
)


@contextmanager
def as_imported() -> Iterator[None]:
    """Do in a fork what an interpreter and `import torch` do by the environment of a process."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    if torch._is_device_backend_autoload_enabled():
        torch._import_device_backends()
    try:
        yield
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


def enter(variables: Mapping[str, str], output: str, errors: str) -> None:
    """Take an environment, and the files that standard output and error are appended to."""
    os.environ.clear()
    os.environ.update(variables)
    for stream, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)


def python(code: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `code` as `python -c` does, with `variables` set, and return how it ended."""
    with tempfile.NamedTemporaryFile() as output, tempfile.NamedTemporaryFile() as errors:
        argv = ["-c", *map(str, arguments)]
        job = (code, argv, {**os.environ, **variables}, output.name, errors.name)
        process = LAUNCHERS.Process(target=_run, args=job)
        process.start()
        try:
            process.join()
        finally:
            process.kill()
        assert process.exitcode is not None
        said = [file.read().decode() for file in (output, errors)]
    return subprocess.CompletedProcess(argv, process.exitcode, *said)


def _run(code: str, argv: list[str], variables: dict[str, str], output: str, errors: str) -> None:
    enter(variables, output, errors)
    sys.argv = argv
    main = sys.modules["__main__"] = ModuleType("__main__")
    with as_imported():
        exec(compile(code, "<string>", "exec"), vars(main))
