"""Asks for five steps, and communicates until both ranks have written a profile of them.

Arguments: the folder of the traces.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

import dsprof
from dsprof.trace.rolling.alarms import Alarms
from dsprof.trace.rolling.capture import ask
from tests.dist.leaving import leave_group

MOST_STEPS = 200_000


def main(folder: Path) -> None:
    # A busy machine raises some, and a window that waits for one is not lost to what we ask for.
    Alarms.judge = lambda *_: None  # type: ignore[method-assign]
    dist.init_process_group("gloo")
    goes_on = torch.ones(1)
    for step in range(MOST_STEPS):
        dist.all_reduce(torch.ones(8).mul_(2))
        if dist.get_rank() == 0:
            if step == 500:  # not in the warm-up, when steps soon get faster
                ask(folder, 5)
            goes_on.fill_(len([*folder.glob("trace.rank*.profile.gz")]) < 2)
        dist.broadcast(goes_on, 0)
        dsprof.step()
        if not goes_on.item():
            break
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
