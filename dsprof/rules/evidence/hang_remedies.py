"""What to do about a hang, in the report and in `dsprof hang`."""

from __future__ import annotations

from collections.abc import Sequence

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.hang.flight_recorders import Mismatch
from dsprof.analysis.hang.model import CauseKind, HangVerdict
from dsprof.analysis.hang.verdict import is_of_threads
from dsprof.analysis.hang.waits import Hang
from dsprof.analysis.hang.words import COPY_ALL, difference
from dsprof.findings.frames import frame_of_user
from dsprof.findings.wording import named
from dsprof.rules.evidence.endings import called
from dsprof.rules.knowledge.stage3 import LEAF_MODULES
from dsprof.trace.collectives import POINT_TO_POINT

_REMEDIES: dict[CauseKind, str] = {
    "exited": "Run as many iterations on {who} as on the others: exit on all ranks or on none, "
    "drop incomplete batches (`drop_last`), or accept uneven inputs with "
    "torch.distributed.algorithms.Join.",
    "stopped": "Resume {who}: send SIGCONT (`kill -CONT PID`), or detach the debugger.",
    "data_loader": "Find out what the workers of its DataLoader wait for: `py-spy dump --pid PID` "
    "prints their stacks. With a `timeout` the DataLoader fails instead of waiting.",
    "child_process": "Find out what the child process of {who} waits for: `ps --ppid PID` lists "
    "it, `py-spy dump --pid PID` prints its stack if it runs Python. A forked child hangs on a "
    "lock that another thread held: start it with the method `spawn`.",
    "store": "Find out which rank sets the key of the store that {who} waits for, and whether the "
    "process that hosts the store still runs.",
    "lock": "Find out which thread holds the lock: `py-spy dump --pid PID` prints all stacks of "
    "{who}, which waits{at}.",
    "file_system": "Check the file system that {who} uses: it waits{at} for a file or a pipe.",
    "sleep": "Look at what {who} waits for: it sleeps{at}.",
    "interpreter_lock": "Look at the call that {who} is in{at}: it blocks all threads of the "
    "process. `py-spy dump --native --pid PID` shows where it is in C.",
    "diverged": "Compare the calls of torch.distributed on {who}{at} with those of the other "
    "ranks: all must call the same functions in the same order, with the same arguments, such as "
    "`ranks` of new_group.",
    "out_of_memory": "Raise the job's memory limit, or reduce what {who} keeps in host memory.",
}
"""What to do about a known cause; `at` is the line of the program."""
_KERNEL_LOG = (
    "the kernel's log of the host (`dmesg > dmesg-$(hostname).txt`) to `dsprof hang`, with the "
    "traces"
)

_OF_DDP = (
    "Train in a function, so that the model is freed before destroy_process_group(): over gloo, a "
    "DDP model that is freed after it can deadlock with a thread of the process group. If that "
    "does not help: "
)

_OWN_GROUP = (
    "Give the thread a process group of its own: dist.new_group(), for "
    "torch.distributed.checkpoint.async_save as process_group."
)
_ONE_BUCKET = "PowerSGD over gloo needs all gradients in one bucket: raise `bucket_cap_mb` of DDP."
_SAME_BRANCH = "Make all ranks take the same branch"
_SAME = {
    "root": "Pass the same `src` or `dst` on all ranks, as a global rank",
    "size": "Pass the same size on all ranks: pad batches, or drop incomplete ones",
    "dtype": "Pass the same dtype on all ranks",
}


def same_call(found: Mismatch) -> str:
    """Say what to do about ranks that called a collective differently."""
    if found.is_of_threads:
        return f"{_OWN_GROUP} {_ONE_BUCKET}"
    what = "" if found.is_of_lines else found.what
    action = f"{_SAME.get(what, _SAME_BRANCH)}. Compare the call sites."
    return f"{action} {LEAF_MODULES}" if found.is_of_zero3 else action


def remedy(verdict: HangVerdict, hang: Hang, endings: Endings) -> str:
    """Say what to do about a verdict."""
    match verdict.kind:
        case "mismatch":
            return next(same_call(o) for o in hang.mismatched if difference(o) == verdict.sentence)
        case "deadlock":
            return (
                "Call the collectives of all groups in the same order on every rank: code that "
                "only one rank runs, such as a checkpoint, must call none. Batch sends and "
                "receives of two ranks with torch.distributed.batch_isend_irecv."
            )
        case "unknown" if not verdict.ranks:
            return COPY_ALL
        case "unknown":
            noun = "dump" if hang.is_of_dumps else "trace"
            return f"Look at the log of {named(verdict.ranks)}. If a {noun} exists, add it."
        case "never_entered" if verdict.operation and is_of_threads(
            verdict.operation.group, verdict.cause, hang
        ):
            return f"{_OWN_GROUP} {_look_at(verdict.ranks, hang, endings)}"
        case "network" if verdict.cause.kind == "store":
            return "Look at the process that hosts the store: its log, and whether it still runs."
        case "network":
            look = _look_at(verdict.waiting, hang, endings)
            call = verdict.operation.op if verdict.operation else ""
            tags = " Compare the `tag` of the send and of the receive." * (call in POINT_TO_POINT)
            return f"{look}{tags} Check the network between the ranks."
        case "came_late":
            ending = endings.ranks.get(verdict.ranks[0])
            since = f" after {called(ending.last)}" if ending and ending.last else ""
            return (
                f"Find out what {named(verdict.ranks)} did{since}. If that has to take so long, "
                "raise the timeout of the process group or of the call."
            )
    if verdict.is_of_device:
        return (
            f"Look for CUDA errors in the log of {named(verdict.ranks)}. Give {_KERNEL_LOG}: it "
            "names device errors."
        )
    if verdict.cause.kind in _REMEDIES and verdict.ranks:
        stack = verdict.stacks.get(str(verdict.ranks[0]), ())
        at = f" at {frame_of_user(stack)}" if stack else ""
        # What a rank that hangs has not written, others have.
        has_ddp = any(end.has_ddp and end.backend == "gloo" for end in endings.ranks.values())
        ends = (endings.ranks.get(rank) for rank in verdict.ranks)
        is_of_ddp = has_ddp and any(end and end.hangs_at_end for end in ends)
        known = _REMEDIES[verdict.cause.kind].format(who=named(verdict.ranks), at=at)
        return _OF_DDP * is_of_ddp + known
    if verdict.kind == "died" and not _raised(verdict.ranks, endings):
        return (
            f"Find out what killed {named(verdict.ranks)}: look at the end of the log, and give "
            f"{_KERNEL_LOG}."
        )
    return _look_at(verdict.ranks, hang, endings)


def after_kills(rank: int, endings: Endings) -> str:
    """Say what to do where the kernel killed processes that are no ranks for memory; else ""."""
    return (
        " If the log says that a worker of a DataLoader or another process was killed, raise the "
        "job's memory limit."
        if endings.helpers_killed(rank)
        else ""
    )


def _raised(ranks: Sequence[int], endings: Endings) -> bool:
    trailers = [endings.ranks[rank].trailer for rank in ranks if rank in endings.ranks]
    return any(trailer is not None and trailer.exception for trailer in trailers)


def _look_at(ranks: Sequence[int], hang: Hang, endings: Endings) -> str:
    rank = ranks[0]
    log = f"Look at the end of the log of {named(ranks)}"
    if (ending := endings.ranks.get(rank)) is None:
        frame = hang.flights.ranks[rank].last_frame if rank in hang.flights.ranks else ""
        last = f" Rank {rank} called its last collective at {frame}." if frame else ""
        return f"Print the stack of {named(ranks)} with `py-spy dump --pid PID`. {log}.{last}"
    after = f" after {called(ending.last)}" if ending.last else ""
    at = f", called at {ending.last_frame}" if ending.last_frame else ""
    if ending.trailer is not None and ending.trailer.exception:
        last = f"; its last collective was {called(ending.last)}{at}" if ending.last else ""
        return f"{log} for the traceback{last}.{after_kills(rank, endings)}"
    host = endings.host_of(ranks)
    first = f"Look at {host}, its storage and its network. " if host else ""
    return (
        f"{first}Look at what rank {rank} does{after}{at}. If it hangs again, print its stack with "
        f"`py-spy dump --pid PID`. {log}."
    )
