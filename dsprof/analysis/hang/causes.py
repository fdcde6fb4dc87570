"""Why a rank does not join, from a look at its process and its connections."""

from __future__ import annotations

import linecache
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dsprof.analysis.ending import Symptoms
from dsprof.analysis.hang.model import CauseKind
from dsprof.findings.frames import frame_of_user, without_hooks
from dsprof.trace.dumps.hang_dump import FILE_WAITS

STOPPED = frozenset("tT")

_LARGEST_SOURCE_BYTES = 1 << 20
_FRAME = re.compile(r"(?P<file>.+):(?P<line>\d{1,9})(?: (?P<function>.*))?")

Patterns = Sequence[tuple[str, CauseKind]]

_ANYWHERE: Patterns = (
    (r"torch/utils/data/dataloader\.py", "data_loader"),
    (r"(?m)(^|/)subprocess\.py", "child_process"),
)
"""Libraries that wait in calls of others."""

_MODULES: Patterns = (
    (r"torch/distributed/(rendezvous|elastic/.*)\.py", "store"),
    (r"(threading|queue|asyncio/\w+|concurrent/futures/\w+|multiprocessing/\w+)\.py", "lock"),
)
"""Where Python's own and torch's code waits; of several the first in this order counts."""

_LINES: Patterns = (
    (r"\bsleep\(", "sleep"),
    (r"\bos\.wait\w*\(", "child_process"),
    (r"(\b|_)store(\(\))?\.(get|wait|add|set|barrier)\(|\bnew_group\(|TCPStore\(", "store"),
    (r"\.acquire\(|\bwith [\w.]*lock\b", "lock"),
    (
        r"\bopen\(|\.(read|readinto|readline|readlines|write|flush|stat|exists|iterdir)\("
        r"|\bos\.(fsync|listdir|makedirs|replace|scandir)\(|\b(torch|np|numpy|json|pickle)\.load\("
        r"|\b(torch|np|numpy)\.save\w*\(",
        "file_system",
    ),
)
"""Calls into C by a line of source: they leave no frame of their own."""

_KERNEL: Patterns = (
    (r"nanosleep", "sleep"),
    (FILE_WAITS, "file_system"),
    (r"futex", "lock"),
)

_TEXTS: dict[CauseKind, str] = {
    "data_loader": "waits for a worker of its DataLoader",
    "child_process": "waits for a child process",
    "store": "waits for the store of torch.distributed",
    "lock": "waits for a lock or another thread",
    "sleep": "sleeps",
    "file_system": "waits for a file, a pipe or a file system",
}

_COMMUNICATION = re.compile(r"torch/distributed/distributed_c10d\.py")
_WRAPPERS = "torch/distributed/c10d_logger.py"


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
    """Return the function of torch.distributed that a stack ends in, as it was called."""
    calls = ""
    for frame in map(_FRAME.fullmatch, stack):
        file = frame["file"].replace(os.sep, "/") if frame else ""
        if frame and _COMMUNICATION.search(file):
            calls = frame["function"] or ""
        elif not (calls and file.endswith(_WRAPPERS)):
            break
    return calls


def _of_stack(stack: Sequence[str]) -> CauseKind | None:
    frames = [found for frame in stack if (found := _FRAME.fullmatch(frame))]
    if not frames:
        return None
    files = [found["file"].replace(os.sep, "/") for found in frames]
    if kind := _first(_ANYWHERE, "\n".join(files)):
        return kind
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


Link = tuple[int, int]


def broken_links(looks: Mapping[int, Symptoms]) -> tuple[Link, ...]:
    """Return the pairs of ranks between which bytes stay unsent, though nothing is left unread."""
    return tuple(sorted(set(_broken(looks))))


def _broken(looks: Mapping[int, Symptoms]) -> Iterator[Link]:
    ends = {
        (end.port, end.peer_port): (rank, end)
        for rank, look in looks.items()
        for end in look.connections
    }
    for (port, peer_port), (rank, end) in ends.items():
        other = ends.get((peer_port, port))
        if other and end.unsent_bytes and not other[1].unread_bytes and other[0] != rank:
            yield min(rank, other[0]), max(rank, other[0])


def cut_off(links: tuple[Link, ...]) -> tuple[int, ...]:
    """Return the ranks at an end of the most links."""
    count = Counter(rank for link in links for rank in link)
    most = max(count.values(), default=0)
    return tuple(sorted(rank for rank, links_of in count.items() if links_of == most))
