"""Prefixes of messages in logs: launchers, schedulers, clocks, and NCCL's own prefix."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from dsprof.trace.schema import LARGEST_WORLD

_RANKS = (
    r"\[rank(?P<rank>\d{1,7})\]:\s?"  # torchrun, torch's handler of exceptions
    # mpirun; its release 5 names itself before an @, SageMaker says more behind the rank
    r"|\[(?:[\w.-]{1,255}@)?\d{1,7},(?:mpirank:)?(?P<mpi>\d{1,7})[^\]]{0,99}\]<std(?:out|err)>:\s?"
)
_LAUNCHERS = re.compile(
    rf"\s*(?:>\s+|{_RANKS}"
    r"|\[default\d{1,5}\]:\s?"  # a local rank
    r"|\(\w+ pid=\d+(?:, ip=[\d.a-f:]+)?\)\s"  # Ray
    r"|(?P<task>\d{1,7}):\s"  # srun --label
    r"|\[?\d{4}-\d\d-\d\d[ T][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?\s"
    r"|[A-Za-z][\w.-]{0,99}:\s(?=\S+:\d+:\d+ \[))"  # pdsh: the name of the node
)
_RANK_BEHIND = re.compile(_RANKS)
_LONGEST_PREFIX = 300
_NUMBER = re.compile(r"\d+")

_LEVEL = re.compile(r"NCCL (INFO|WARN|TRACE|CALL|ABORT)(?: |$)")
_LONGEST_HEAD = 512
_HOST = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}|<[\w.-]{1,99}>|\*{1,99}"  # or what hides it
_PROCESS = rf"(?P<host>{_HOST}):(?P<pid>\d{{1,9}}):\d{{1,9}} "
_HEAD = re.compile(
    rf"(?:{_PROCESS})?"
    r"(?:\[(?P<device>-?\d{1,9})\] )?(?:[^\s\[]{1,255}:\d{1,9} )?(?:\(\w{1,99}\) )?$"
)
_WRITER = re.compile(rf"(?<![A-Za-z0-9]){_PROCESS}\[-?\d{{1,9}}\] NCCL ")
_OWN_VERSION = re.compile(
    r"(?:^[NR]CCL version ?:? ?\d|(?:^|\s)[NR]CCL version ?:? ?\d+\.\d+\.\d+[+-]\S+$)"
)


class Said(NamedTuple):
    """A message of NCCL or RCCL and who wrote it: host and process, as far as the line says."""

    level: str
    message: str
    host: str = ""
    pid: int = 0
    device: int = -1


def without_launcher(line: str) -> tuple[int, int, str]:
    """Return the rank and the task that launchers put before a line, -1 for none, and the rest."""
    rank = task = -1
    place = 0
    while match := _LAUNCHERS.match(line, place):
        place = match.end()
        rank = _rank_of(match, rank)
        task = int(match["task"]) if match["task"] and rank < 0 else task
    # Pods, containers and loggers put names of their own before what a launcher puts there.
    if rank < 0 and (match := _RANK_BEHIND.search(line, place, place + _LONGEST_PREFIX)):
        rank, place = _rank_of(match, rank), match.end()
    rank, task = (number if number < LARGEST_WORLD else -1 for number in (rank, task))
    return rank, task, line[place:]


def _rank_of(match: re.Match[str], before: int) -> int:
    found = match["rank"] or match["mpi"]
    return int(found) if found else before


def before_block(before: str) -> list[str]:
    """Return what is before each line of a block, between numbers, as before its first line."""
    return _NUMBER.split(before)


def without(before: list[str], line: str) -> str:
    """Return a line of a block without what is before it."""
    place = 0
    for number, part in enumerate(before):
        if number:
            if (found := _NUMBER.match(line, place)) is None:
                return line
            place = found.end()
        if not line.startswith(part, place):
            return line
        place += len(part)
    return line[place:]


def cut_lines(text: str) -> list[str]:
    """Split a line into which further processes wrote theirs; all but the last part are cut."""
    if text.count(" NCCL ") < 2:
        return [text]
    begins = [match.start() for match in _WRITER.finditer(text)]
    return [text[begin:end] for begin, end in pairwise([0, *begins[1:], len(text)])]


def nccl_message(text: str) -> Said | None:
    """Read a line of NCCL or RCCL; None for any other."""
    if level := _LEVEL.search(text):
        head = text[max(0, level.start() - _LONGEST_HEAD) : level.start()]
        writer = _HEAD.search(head)
        message = text[level.end() :].strip()
        if writer is None or not writer[0]:
            return Said(level[1], message)
        host, pid, device = writer["host"] or "", writer["pid"], writer["device"]
        return Said(level[1], message, host, int(pid or 0), -1 if device is None else int(device))
    # The one line that it writes without a prefix.
    if "CCL version" in text and (own := _OWN_VERSION.search(text)):
        return Said("VERSION", text[own.start() :].strip())
    return None
