"""A hang is judged over two nodes that share no memory, by the store or the folder of traces."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.dist.launch import ROOT, environment, succeeds
from tests.dist.programs.two_nodes import CULPRIT
from tests.hangs import network
from tests.hangs.__main__ import verdict

_MAY = "mount -t tmpfs none /dev/shm && hostname node0 && ip link add one type veth"

pytestmark = [
    pytest.mark.dist,
    pytest.mark.skipif(
        os.geteuid() != 0 or not succeeds("unshare", "--mount", "--uts", "--net", "sh", "-c", _MAY),
        reason="namespaces of a node need root, ip, unshare and the right to use them",
    ),
]

_WITHIN_S = 900
"""Only a test that fails takes this long."""


def run(fault: str, folder: Path, is_over: Callable[[dict[int, str]], bool]) -> dict[int, str]:
    """Let two nodes run until `is_over` says so of what ranks printed; returns that."""
    command = [sys.executable, "-m", "tests.dist.programs.two_nodes", fault, str(folder)]
    launcher = subprocess.Popen(command, cwd=ROOT, env=environment({}))
    try:
        end = time.monotonic() + _WITHIN_S
        while launcher.poll() is None and time.monotonic() < end:
            said = printed(folder)
            if is_over(said):
                return said
            time.sleep(0.1)
        return printed(folder)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(launcher.pid).children(recursive=True):
                process.kill()
        launcher.kill()
        launcher.wait()
        network.remove(folder)


def printed(folder: Path) -> dict[int, str]:
    logs = {rank: folder / f"rank{rank}.log" for rank in range(4)}
    return {rank: log.read_text() for rank, log in logs.items() if log.exists()}


@pytest.mark.parametrize(
    ("fault", "why", "tells"),
    [
        ("sleeps", "two_nodes.py:28 oversleep", (0, CULPRIT)),
        ("stopped", "is stopped", (0,)),
        ("store is dead", "two_nodes.py:28 oversleep", (0, CULPRIT)),
    ],
)
def test_a_culprit_on_another_node_is_named(
    tmp_path: Path, fault: str, why: str, tells: tuple[int, ...]
) -> None:
    sentence = f"dsprof: Rank {CULPRIT} never entered all_reduce 7 of group second"

    def is_over(said: dict[int, str]) -> bool:
        trace = tmp_path / "trace" / "trace.rank00000.json"
        is_told = all(sentence in said.get(rank, "") for rank in tells)
        return is_told and '"hang_ranks"' in trace.read_text()

    said = run(fault, tmp_path, is_over)
    for rank in tells:
        paragraph = said[rank][said[rank].index(sentence) :]
        assert "ranks 0-2 waited" in paragraph
        assert why in paragraph
    assert sum(sentence in text for text in said.values()) == len(tells)
    (tmp_path / "trace" / f"trace.rank{CULPRIT:05d}.json").unlink()
    found = verdict(tmp_path / "trace")
    assert found["ranks"] == [CULPRIT]
    assert found["sentence"].startswith(sentence.removeprefix("dsprof: "))


def test_a_killed_culprit_on_another_node_is_named_afterwards(tmp_path: Path) -> None:
    run("killed", tmp_path, lambda said: False)
    found = verdict(tmp_path / "trace")
    assert (found["kind"], found["ranks"]) == ("died", [CULPRIT])
