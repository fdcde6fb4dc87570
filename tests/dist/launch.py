"""Starts real multi-process runs over gloo on this machine, and ends them whatever happens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    command = [*behind, str(python), "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1", "--nproc-per-node", str(nproc), str(program)]
    start = time.monotonic()
    with subprocess.Popen(
        command + [str(arg) for arg in args],
        env=environment(env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as agent:
        try:
            output, _ = agent.communicate(timeout=timeout)
            returncode = agent.returncode
        except subprocess.TimeoutExpired:
            _kill(agent.pid)
            output, _ = agent.communicate()
            returncode = 124
        except BaseException:
            _kill(agent.pid)
            raise
    return Result(returncode, output, time.monotonic() - start)


def _kill(agent: int) -> None:
    """Kill a launcher and its ranks, which live in sessions of their own."""
    parent = psutil.Process(agent)
    for process in [*parent.children(recursive=True), parent]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
