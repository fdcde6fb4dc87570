"""Ranks of two nodes that share neither memory nor a folder keep the same steps."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_header, read_trace
from tests.dist.launch import PROGRAMS, ROOT, environment, succeeds
from tests.ports import free_port

_UNSHARED = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
_NODE = "mount -t tmpfs none /dev/shm && exec {command}"

pytestmark = [
    pytest.mark.dist,
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or not succeeds(*_UNSHARED, _NODE.format(command="true")),
        reason="memory of a node needs root, unshare and the right to use it",
    ),
]

_WITHIN_S = 900
"""Only a test that fails takes this long."""


@contextmanager
def two_nodes(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start two launchers of two ranks each; end them whatever happens."""
    port, launchers = free_port(), []
    for node in range(2):
        command = (
            f"{sys.executable} -m torch.distributed.run --nnodes 2 --node-rank {node} "
            f"--nproc-per-node 2 --master-addr 127.0.0.1 --master-port {port} "
            f"{PROGRAMS / 'captured.py'} {folder / 'last-step'}"
        )
        variables = {
            "DSPROF": "1",
            "DSPROF_MODE": "always",
            "DSPROF_CAPTURE_SIGNAL": "SIGUSR2",
            "DSPROF_OUT": str(folder / f"node{node}"),
        }
        launchers.append(
            subprocess.Popen(
                [*_UNSHARED, _NODE.format(command=command)],
                cwd=ROOT,
                env=environment(variables),
            )
        )
    try:
        yield launchers
    finally:
        for launcher in launchers:
            with suppress(psutil.NoSuchProcess):
                for process in psutil.Process(launcher.pid).children(recursive=True):
                    process.kill()
            launcher.kill()
            launcher.wait()


def paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("node*/trace.rank*.json"))


def until(folder: Path, wanted: int) -> list[RankTrace]:
    """Wait until all ranks keep so many steps that were asked for."""
    end_s = time.monotonic() + _WITHIN_S
    while time.monotonic() < end_s:
        if len(paths(folder)) == 4:
            traces = [*map(read_trace, paths(folder))]
            if all(trace.steps and len(asked(trace)) >= wanted for trace in traces):
                return traces
        time.sleep(0.5)
    raise AssertionError(f"{[len(asked(read_trace(path))) for path in paths(folder)]} steps")


def asked(trace: RankTrace) -> dict[int, str]:
    return {step: kept.cause for step, kept in trace.kept.items() if kept.why == "capture"}


def test_two_nodes_keep_the_same_steps(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as launchers:
        until(tmp_path, 0)
        command = [sys.executable, "-m", "dsprof", "capture", tmp_path / "node1", "--steps", "30"]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        first, last = map(int, re.findall(r"steps (\d+) to (\d+)", said.replace(",", ""))[0])
        traces = until(tmp_path, 30)
        assert [asked(one) for one in traces] == [
            dict.fromkeys(range(first, last + 1), "dsprof capture")
        ] * 4
        os.kill(read_header(paths(tmp_path)[3]).pid, signal.SIGUSR2)
        until(tmp_path, 50)
        (tmp_path / "last-step").write_text("0")
        assert [launcher.wait(_WITHIN_S) for launcher in launchers] == [0, 0]
    kept = [asked(read_trace(path)) for path in paths(tmp_path)]
    assert kept == [kept[0]] * 4
    assert {*kept[0].values()} == {"dsprof capture", "SIGUSR2 on rank 3"}
