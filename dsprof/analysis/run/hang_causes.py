"""What a rank does instead of joining, from a look at its process."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Sequence

from dsprof.analysis.aggregates.endings import Symptoms
from dsprof.analysis.run.hang_model import CauseKind
from dsprof.findings.frames import frame_of_user, without_hooks
from dsprof.trace.dumps.hang_dump import FILE_WAITS

STOPPED = frozenset("tT")

_LARGEST_SOURCE_BYTES = 1 << 20
_FRAME = re.compile(r"(?P<file>.+):(?P<line>\d+)(?: (?P<function>.*))?")

Patterns = Sequence[tuple[str, CauseKind]]

_MODULES: Patterns = (
    (r"torch/utils/data/dataloader\.py", "data_loader"),
    (r"torch/distributed/(rendezvous|elastic/.*)\.py", "store"),
    (r"(threading|queue|asyncio/\w+|concurrent/futures/\w+|multiprocessing/\w+)\.py", "lock"),
)
"""Where Python's own and torch's code waits; of several the first in this order counts."""

_LINES: Patterns = (
    (r"\bsleep\(", "sleep"),
    (r"\bstore\.(get|wait|add|set)\(|\bnew_group\(|TCPStore\(", "store"),
    (r"\.acquire\(|\bwith [\w.]*lock\b", "lock"),
    (
        r"\bopen\(|\.(read|readinto|readline|readlines|write|flush|stat|exists|iterdir)\("
        r"|\bos\.(fsync|listdir|makedirs|replace|scandir)\(|\b(torch|np|numpy|json|pickle)\.load\("
        r"|\b(torch|np|numpy)\.save\w*\(",
        "file_system",
    ),
)
"""What a line of source calls in C, which leaves no frame of its own."""

_KERNEL: Patterns = (
    (r"nanosleep", "sleep"),
    (FILE_WAITS, "file_system"),
    (r"futex", "lock"),
)

_TEXTS: dict[CauseKind, str] = {
    "data_loader": "waits for a worker of its DataLoader",
    "store": "waits for the store of torch.distributed",
    "lock": "waits for a lock or another thread",
    "sleep": "sleeps",
    "file_system": "waits for a file, a pipe or a file system",
}

_COMMUNICATION = re.compile(r"torch/distributed/distributed_c10d\.py")


def in_own_code(symptoms: Symptoms) -> tuple[CauseKind, str] | None:
    """Return what a living rank waits for, as a kind of cause and in words; None if unknown."""
    stack = without_hooks(symptoms.stack)
    where = f" at {frame_of_user(stack)}" if stack else ""
    if symptoms.lost_store:
        where = f"{where}, for the store at {symptoms.lost_store}, which does not answer"
        return "store", f"waits in {symptoms.store_call or 'a call'}{where}"
    if not (kind := _of_stack(stack)) and (call := _communicates(stack)):
        return "diverged", f"is in {call} of torch.distributed{where}"
    kind = kind or _first(_KERNEL, symptoms.waits_in)
    if not kind and symptoms.state == "D":  # it cannot be interrupted: of disks and networks
        kind = "file_system"
    if not kind:
        return None
    return kind, f"{_TEXTS[kind]}{where}"


def _communicates(stack: Sequence[str]) -> str:
    """Return the function of torch.distributed that a stack ends in, of one that is unrecorded."""
    inner = _FRAME.fullmatch(stack[0]) if stack else None
    is_call = inner and _COMMUNICATION.search(inner["file"].replace(os.sep, "/"))
    return inner["function"] or "" if inner and is_call else ""


def _of_stack(stack: Sequence[str]) -> CauseKind | None:
    frames = [found for frame in stack if (found := _FRAME.fullmatch(frame))]
    if not frames:
        return None
    files = [found["file"].replace(os.sep, "/") for found in frames]
    if any(re.search(_MODULES[0][0], file) for file in files):
        return _MODULES[0][1]
    inner = frames[0]
    by_line = _first(_LINES, _source(inner["file"], int(inner["line"])))
    return by_line or _first(_MODULES, files[0])


def _source(file: str, line: int) -> str:
    """Return a line of the source, where it lies on this machine; the name is not trusted."""
    try:
        is_source = os.path.isfile(file) and os.path.getsize(file) < _LARGEST_SOURCE_BYTES
    except (OSError, ValueError):
        return ""
    return linecache.getline(file, line) if is_source and file.endswith(".py") else ""


def _first(patterns: Patterns, text: str) -> CauseKind | None:
    return next((kind for pattern, kind in patterns if re.search(pattern, text)), None)
