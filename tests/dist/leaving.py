"""How programs of tests and benchmarks end, whichever folder they lie in."""

import threading
import time
from pathlib import Path

import torch.distributed as dist

LOOKS = 5_000


def leave_group() -> None:
    """Leave the process group when its threads hold no tensor.

    A gloo thread takes the GIL to let go of a tensor; where Python is ending by then, it aborts the
    process, dsprof or not. A barrier has no tensor and comes after all that have, but on a busy
    machine the thread of an earlier collective may not have got that far: it is waited for, too.
    """
    dist.barrier()
    dist.destroy_process_group()
    wait_for_threads()


def wait_for_threads() -> None:
    """Wait until no thread is about to take the GIL; for programs that have left their group."""
    looks_at_rest = 0
    for _ in range(LOOKS):
        looks_at_rest = looks_at_rest + 1 if _others_sleep() else 0
        if looks_at_rest == 2:  # at the first a thread may have slept until it gets the GIL
            return
        time.sleep(0.001)  # without the GIL


def _others_sleep() -> bool:
    """Tell whether no thread of this process but the calling one runs or is about to."""
    mine = str(threading.get_native_id())
    tasks = (task for task in Path("/proc/self/task").glob("*") if task.name != mine)
    return all(_state(task) not in "RD" for task in tasks)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(") ")[2][0]
    except OSError:  # it has ended
        return "X"
