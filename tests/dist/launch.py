"""Starts real multi-process runs over gloo on this machine, and ends them whatever happens."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from multiprocessing.context import ForkContext, ForkServerContext
from pathlib import Path
from typing import Literal

import psutil

from tests.dist.warm import EXTENSIONS
from tests.forked import LAUNCHERS, TORCHRUN, enter

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"

_ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONPATH": str(ROOT),
    "PYTHONWARNINGS": "ignore::FutureWarning",  # DeepSpeed calls what torch 2.13 deprecates
    "TORCH_EXTENSIONS_DIR": str(EXTENSIONS),
}

_FORKED = PROGRAMS / "forked.py"
_FORK = multiprocessing.get_context("fork")


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a rank on this machine."""
    return {**os.environ, **_ENVIRONMENT, **changes}


def succeeds(*command: str) -> bool:
    """Say whether the machine has a command and lets it do what it is asked for."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


@dataclass(frozen=True)
class Result:
    """How a run ended. `output` is what all ranks printed, in the order of arrival."""

    returncode: int
    output: str
    seconds: float

    def check(self) -> Result:
        """Return this result, or fail the test with the output of the run."""
        assert self.returncode == 0, f"exit code {self.returncode}\n{self.output[-8000:]}"
        return self


def launch(
    program: Path,
    nproc: int = 2,
    *,
    args: Sequence[object] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 900.0,
    python: str | Path = sys.executable,
    behind: Sequence[str] = (),
    imported: Literal["nothing", "torch", "compiler"] = "nothing",
) -> Result:
    """Run `program` on `nproc` ranks of the interpreter `python` and wait for the end.

    `behind` starts a command in a network of its own, where the run is then: `unshare ...`. Ranks
    start as those of a user do, or, seconds sooner, as forks of a process that has `imported`
    torch, or also its compiler, which every optimizer imports.
    After `timeout` seconds all its processes are killed and the result has exit code 124.
    """
    command = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(nproc)]
    if imported != "nothing":
        command += ["--start-method", "fork", "--run-path", str(_FORKED)]
    command += [str(program), *map(str, args)]
    variables = environment(env or {})
    start = time.monotonic()
    with tempfile.NamedTemporaryFile() as output, _namespaces(behind) as entered:
        if python != sys.executable:
            module = [*behind, str(python), "-m", TORCHRUN, *command]
            returncode = _started(module, variables, output.name, timeout)
        elif imported == "compiler":
            job = (command, variables, output.name, entered, timeout)
            returncode = _with_compiler().submit(_forked, _FORK, *job).result()
        else:
            returncode = _forked(LAUNCHERS, command, variables, output.name, entered, timeout)
        said = output.read().decode(errors="replace")
    return Result(returncode, said, time.monotonic() - start)


def _started(command: list[str], variables: dict[str, str], output: str, timeout: float) -> int:
    with (
        open(output, "ab") as file,
        subprocess.Popen(command, env=variables, stdout=file, stderr=subprocess.STDOUT) as agent,
    ):
        try:
            return agent.wait(timeout)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            if agent.poll() is None:
                _kill(agent.pid)


@contextlib.contextmanager
def _namespaces(behind: Sequence[str]) -> Iterator[list[str]]:
    """Yield the files of the namespaces in which `behind` starts a command."""
    if not behind:
        yield []
        return
    with subprocess.Popen([*behind, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as held:
        assert held.stdin is not None
        assert held.stdout is not None
        held.stdin.write(b"\n")
        held.stdin.flush()
        assert held.stdout.readline(), f"{behind[0]} failed"
        yield [f"/proc/{held.pid}/ns/{kind}" for kind in ("user", "net")]


def _enter_namespaces(paths: Sequence[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for file in [os.open(path, os.O_RDONLY) for path in paths]:
        if libc.setns(file, 0):  # Python has it from 3.12 on
            raise OSError(ctypes.get_errno(), "setns")
        os.close(file)


@cache
def _with_compiler() -> ProcessPoolExecutor:
    """Return a process to fork launchers from in which torch's compiler is imported."""
    return ProcessPoolExecutor(1, LAUNCHERS, import_module, ("torch._inductor.compile_fx",))


def _forked(
    context: ForkContext | ForkServerContext,
    arguments: list[str],
    variables: dict[str, str],
    output: str,
    namespaces: list[str],
    timeout: float,
) -> int:
    agent = context.Process(target=_torchrun, args=(arguments, variables, output, namespaces))
    agent.start()
    try:
        agent.join(timeout)
        return 124 if agent.exitcode is None else agent.exitcode
    finally:
        if agent.pid is not None and agent.exitcode is None:
            _kill(agent.pid)
            agent.join()


def _torchrun(
    arguments: list[str], variables: dict[str, str], output: str, namespaces: list[str]
) -> None:
    enter(variables, output, output)
    _enter_namespaces(namespaces)
    import_module(TORCHRUN).main(arguments)


def _kill(agent: int) -> None:
    """Kill a launcher and its ranks, which live in sessions of their own."""
    parent = psutil.Process(agent)
    for process in [*parent.children(recursive=True), parent]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
