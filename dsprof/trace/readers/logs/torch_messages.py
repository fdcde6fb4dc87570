"""Torch's messages in a log when a device is out of memory or a collective out of time."""

from __future__ import annotations

import re

from dsprof.trace.collectives import family
from dsprof.trace.rank_log import CollectiveTimeout, LastWork, OutOfMemory

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"(\d{1,9}(?:\.\d{1,9})? (?:bytes|[KMGT]iB))"

_ASKED = re.compile(rf"(?:\b([A-Z]{{3,4}}) )?out of memory\. Tried to allocate {_SIZE}")
_DEVICE = re.compile(r"\(?(?:GPU|XPU|NPU|device) (\d{1,5})\b")
_PARTS = {
    "capacity": re.compile(rf"{_SIZE} total capacity|total capac?i?ty of {_SIZE}"),
    "free": re.compile(rf"{_SIZE}(?: is)? free"),
    "process": re.compile(rf"this process has {_SIZE} memory in use"),
    "allocated": re.compile(rf"{_SIZE} (?:already allocated|is allocated by PyTorch)"),
    "unallocated": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
    "reserved": re.compile(rf"{_SIZE} (?:reserved in total|cached)"),  # as it was up to torch 2.0
    "allowed": re.compile(rf"{_SIZE} allowed"),
}
_OTHER = re.compile(rf"Process (\d{{1,10}}) has {_SIZE} memory in use")

_ROUNDING = 1.001  # sizes are printed with two decimals
Processes = tuple[tuple[int, int], ...]  # pid and bytes

_GAVE_UP = re.compile(
    r"atchdog caught collective operation timeout: (?:WorkNCCL|Work\w*)\("
    r"(?:SeqNum=(?P<seq>\d{1,15}), )?OpType=(?P<op>\w{1,60})"
    r"(?:, (?:NumelIn|TensorShape)=\[?(?P<elements>\d{1,20}))?"
    r".{0,299}?\) ran for (?P<waited>\d{1,15}) milliseconds"
)
_NOT_PASSED = re.compile(
    r"\]: Ranks? (?P<absent>\d{1,6}(?:, ?\d{1,6}){0,999}) failed to pass monitoredBarrier in "
    r"(?P<waited>\d{1,15}) ms"
)
_DONE = (
    r"enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,15}), "
    r"(?:last started work: -?\d{1,15}(?: \([^)]{0,99}\))?, )?"  # torch 2.13
    r"last completed (?:NCCL )?work: (?P<completed>-?\d{1,15})"
)
_LAST = re.compile(
    r"(?:watchdog at work|Timeout at NCCL work)(?:: | sequence id: )(?P<at>\d{1,15})"
    r"(?:,| PG status:) "
    rf"last {_DONE}"
)
_ASKED_TO_DUMP = re.compile(
    rf"Received a dump signal due to a collective timeout (?:from {{1,2}}rank (?P<by>\d{{1,6}}) )?"
    rf".{{0,199}}Last {_DONE}"
)
# The GUID is of all ranks, the id of one, and groups without names share one.
_GROUP = re.compile(r"\[PG (?:ID )?(?P<id>\d{1,15})(?: PG GUID (?P<guid>[^\s(]{1,99}))?")
_NOT_KNOWN = 1 << 62
"""Above it a number of elements is none: torch writes -1 without a sign."""
_RANK_OF_WRITER = re.compile(r"\[(?:PG [^\]]{0,199})?[Rr]ank (\d{1,6})\]")


def out_of_memory(text: str) -> OutOfMemory | None:
    """Read what the caching allocator says of a failed request, of torch 1.4 and later."""
    asked = _ASKED.search(text)
    if asked is None:
        return None
    sizes = {name: _found(pattern, text) for name, pattern in _PARTS.items()}
    if sizes["capacity"] < 0 or sizes["allocated"] < 0:
        return None
    unallocated = sizes["unallocated"]
    if unallocated < 0 <= sizes["reserved"]:
        unallocated = max(0, sizes["reserved"] - sizes["allocated"])
    others = tuple((int(pid), _bytes(size)) for pid, size in _OTHER.findall(text)[:16])
    if sizes["process"] < 0:
        used = sizes["capacity"] - max(0, sizes["free"])
        sizes["process"], others = _own(others, sizes["allocated"] + max(0, unallocated), used)
    device = _DEVICE.search(text, asked.end())
    return OutOfMemory(
        device=int(device[1]) if device else -1,
        asked_bytes=_bytes(asked[2]),
        capacity_bytes=sizes["capacity"],
        free_bytes=sizes["free"],
        allocated_bytes=sizes["allocated"],
        unallocated_bytes=unallocated,
        process_bytes=sizes["process"],
        allowed_bytes=sizes["allowed"],
        others=others,
        kind=asked[1] or "",
    )


def _own(listed: Processes, reserved_bytes: int, used_bytes: int) -> tuple[int, Processes]:
    """Return what the process that wrote a text holds, -1 if it is not listed, and the others.

    In a container a process knows itself by another number than the driver does, and is listed
    among the others: they and what it reserved are more than what is in use.
    """
    if sum(size for _, size in listed) + reserved_bytes <= used_bytes * _ROUNDING:
        return -1, listed
    able = [one for one in listed if one[1] * _ROUNDING >= reserved_bytes]
    if not able:
        return -1, listed
    own = min(able, key=lambda one: one[1])
    return own[1], tuple(one for one in listed if one is not own)


def gave_up(text: str) -> CollectiveTimeout | LastWork | None:
    """Read what ends a process: of NCCL its watchdog, or another rank's; of gloo a barrier."""
    place = _GROUP.search(text)
    group = place["guid"] or place["id"] if place else ""
    if match := _GAVE_UP.search(text):
        op, elements = match["op"], int(match["elements"] or -1)
        return CollectiveTimeout(
            op=family(op.lower()),
            seq=int(match["seq"] or -1),
            elements=elements if elements < _NOT_KNOWN else -1,
            waited_ms=int(match["waited"]),
            group=group,
        )
    if match := _NOT_PASSED.search(text):
        absent = tuple(map(int, match["absent"].split(",")))
        return CollectiveTimeout("barrier", waited_ms=int(match["waited"]), absent=absent)
    if match := _LAST.search(text):
        return LastWork(group, int(match["at"]), int(match["enqueued"]), int(match["completed"]))
    if match := _ASKED_TO_DUMP.search(text):
        enqueued, completed = int(match["enqueued"]), int(match["completed"])
        return LastWork(group, -1, enqueued, completed, int(match["by"] or -1))
    return None


def rank_of_writer(text: str) -> int:
    """Return the rank that the watchdog names as its own, in its group; -1 if it names none."""
    match = _RANK_OF_WRITER.search(text)
    return int(match[1]) if match else -1


def _found(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return -1 if match is None else _bytes(next(group for group in match.groups() if group))


def _bytes(size: str) -> int:
    number, unit = size.split(" ")
    return round(float(number) * _UNITS[unit])
