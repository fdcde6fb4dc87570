"""Starts real multi-process runs over gloo on this machine, and ends them whatever happens."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import psutil

from tests.dist.warm import EXTENSIONS

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

_TORCHRUN = "torch.distributed.run"
_LAUNCHERS = multiprocessing.get_context("forkserver")
_LAUNCHERS.set_forkserver_preload([_TORCHRUN])  # to import torch takes seconds


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a rank on this machine."""
    return {**os.environ, **_ENVIRONMENT, **changes}


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
    timeout: float = 240.0,
    python: str | Path = sys.executable,
    behind: Sequence[str] = (),
) -> Result:
    """Run `program` on `nproc` ranks of the interpreter `python` and wait for the end.

    `behind` is a command that starts the launcher: `unshare ...`.
    After `timeout` seconds all its processes are killed and the result has exit code 124.
    """
    command = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(nproc)]
    command += [str(program), *map(str, args)]
    variables = environment(env or {})
    start = time.monotonic()
    with tempfile.NamedTemporaryFile() as output:
        if behind or python != sys.executable:
            module = [*behind, str(python), "-m", _TORCHRUN, *command]
            returncode = _started(module, variables, output.name, timeout)
        else:
            returncode = _forked(command, variables, output.name, timeout)
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


def _forked(arguments: list[str], variables: dict[str, str], output: str, timeout: float) -> int:
    agent = _LAUNCHERS.Process(target=_torchrun, args=(arguments, variables, output))
    agent.start()
    try:
        agent.join(timeout)
        return 124 if agent.exitcode is None else agent.exitcode
    finally:
        if agent.pid is not None and agent.exitcode is None:
            _kill(agent.pid)
            agent.join()


def _torchrun(arguments: list[str], variables: dict[str, str], output: str) -> None:
    os.environ.clear()
    os.environ.update(variables)
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    import_module(_TORCHRUN).main(arguments)


def _kill(agent: int) -> None:
    """Kill a launcher and its ranks, which live in sessions of their own."""
    parent = psutil.Process(agent)
    for process in [*parent.children(recursive=True), parent]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
