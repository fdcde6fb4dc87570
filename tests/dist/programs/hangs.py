"""Lets runs hang in several ways and ends them: OUT/<case> has the traces of each.

All ranks are forks of this process, which has torch but no dsprof until they are there. They hang
for good; once their traces prove that they do, the signal of the case ends them.
"""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

RANKS = 3
ABSENT = 2  # the rank that others wait for
_LEAST_WAIT_S = 1.0
_PR_SET_PDEATHSIG = 1


def reduce(elements: int = 4, group: dist.ProcessGroup | None = None) -> None:
    dist.all_reduce(torch.ones(elements), group=group)


def hangs() -> None:
    threading.Event().wait()


def never_comes(rank: int) -> None:
    if rank == ABSENT:
        hangs()
    reduce()


def never_comes_to_what_is_not_waited_for_at_once(rank: int) -> None:
    if rank == ABSENT:
        hangs()
    dist.all_reduce(torch.ones(4), async_op=True).wait()


def skips_one(rank: int) -> None:
    if rank != ABSENT:
        dist.broadcast(torch.ones(3), 0)
    reduce()


def other_size(rank: int) -> None:
    reduce(1 << 20 if rank == ABSENT else 4)


def other_order(rank: int) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in groups if rank else reversed(groups):
        reduce(group=group)
    hangs()


def never_sends(rank: int) -> None:
    if rank == 1:
        dist.recv(torch.ones(4), ABSENT)
    if rank == ABSENT:
        hangs()
    reduce()


def raises(rank: int) -> None:
    if rank == ABSENT:
        raise ValueError("of the user")
    reduce()


class Case(NamedTuple):
    run: Callable[[int], None]
    end: signal.Signals | None = signal.SIGKILL  # None: it ends by itself
    timeout_s: float = 600


CASES = {
    "killed": Case(never_comes),
    "skips_one": Case(skips_one, signal.SIGTERM),
    "interrupted": Case(never_comes_to_what_is_not_waited_for_at_once, signal.SIGINT),
    "interrupted_in_a_call": Case(never_comes, signal.SIGINT),
    "terminated": Case(never_comes, signal.SIGTERM),
    "warned": Case(never_comes, signal.SIGUSR1),
    "times_out": Case(never_comes, None, timeout_s=5),
    "other_size": Case(other_size),
    "other_order": Case(other_order),
    "never_sends": Case(never_sends, signal.SIGTERM),
    "raises": Case(raises, None),
}


def begin(name: str, rank: int, folder: Path) -> None:
    """Become one rank of a case, which must not outlive a test that was given up."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update({"DSPROF": "1", "DSPROF_OUT": str(folder)})
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from dsprof_autostart import autostart

    autostart()
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), RANKS),
        rank=rank,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=CASES[name].timeout_s),
    )
    for _ in range(3):
        reduce()
    CASES[name].run(rank)
    sys.exit()


def is_proven(folder: Path) -> bool:
    """Say whether the traces so far show who waits for whom, or what differs."""
    from dsprof.analysis.aggregates.endings import Endings
    from dsprof.analysis.run.endings import find_hang, was_alive_meanwhile
    from dsprof.analysis.summarise import summarise
    from dsprof.errors import TraceError
    from dsprof.trace.run import find_run

    try:
        endings = summarise(find_run([folder]), [Endings])[Endings]
    except TraceError:  # none has begun
        return False
    hang = find_hang(endings, int(_LEAST_WAIT_S * 1e9))
    are_alive = (
        was_alive_meanwhile(endings.ranks[rank], state)
        for state in hang.held_up
        for rank in state.absent
    )
    return len(endings.ranks) == RANKS and bool(hang.held_up or hang.mismatched) and all(are_alive)


def main() -> None:
    out, *names = sys.argv[1:]
    for name in names:
        folder = Path(out) / name
        folder.mkdir()
        children = []
        for rank in range(RANKS):
            child = os.fork()
            if not child:
                begin(name, rank, folder)
            children.append(child)
        if (end := CASES[name].end) is not None:
            while not is_proven(folder):
                time.sleep(0.1)
            for child in children:
                os.kill(child, end)
        elif name == "times_out":
            for child in children[:ABSENT]:
                os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            os.kill(children[ABSENT], signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
