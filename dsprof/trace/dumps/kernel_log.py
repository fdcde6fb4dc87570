"""A kernel's log (`dmesg`, `journalctl -k`): processes it killed or saw crash, devices that failed.

Errors of NVIDIA's driver have numbers: https://docs.nvidia.com/deploy/xid-errors/. AMD's says in a
line of its own which process caused a page fault.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Literal

LARGEST_BYTES = 1 << 26
START = re.compile(
    r"^(?:<\d{1,3}>)?\[ *\d{1,9}\.\d{6}\] |^\[\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}\] "
    r"|^[^\n]{0,300} kernel: |^\d{4}-\d\d-\d\dT[\d:,.]+\S* NVRM: ",
    re.MULTILINE,
)
_PREFIX = re.compile(
    r"(?:<\d{1,3}>)?(?:\[ *(?P<boot_s>\d{1,9}\.\d{6})\]"
    r"|\[(?P<date>\w{3} \w{3} [ \d]\d [\d:]{8} \d{4})\]"
    r"|(?P<stamp>\w{3} [ \d]\d [\d:]{8}|\d{4}-\d\d-\d\d\S{1,40})"
    r"(?: (?P<host>[\w.-]{1,253}) kernel:)?)"
)
_MARKED = re.compile(
    r"^[^\n]{0,400}(?:Killed process \d|\]:? (?:segfault|general protection fault|trap )"
    r"|INFO: task |NVRM: Xid \(|amdgpu [\da-f:.]{5,16}: )[^\n]{0,400}",
    re.MULTILINE,
)
_KILLED = re.compile(r"\bKilled process (\d{1,9}) \(([^)]{1,32})\)")
_CRASHED = re.compile(
    r"([^\s\]]{1,32})\[(\d{1,9})\]:? (segfault|general protection fault|trap \w{1,20} \w{1,20})\b"
    r"(?:.{0,200} in ([\w.+-]{1,100})\[)?"
)
_BLOCKED = re.compile(r"INFO: task (.{1,32}):(\d{1,9}) blocked for more than (\d{1,6}) seconds")
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([\da-fA-F:.]{5,16})\): (\d{1,4}), (?:pid=(\d{1,9})(?:,|$))?"
)
_OF_AMD = re.compile(
    r"amdgpu (?P<address>[\da-f:.]{5,16}): .{0,40}?(?:(?P<unmapped>page fault \()"
    r"|(?P<failed>uncorrectable hardware error|GPU reset begin)"
    r"|process .{1,32} pid \d)",
    re.IGNORECASE,
)
_PID_OF_AMD = re.compile(r"process .{1,32}? pid (\d{1,9}) thread", re.IGNORECASE)
_MOST = 100_000

_UNMAPPED = "a kernel of the program accessed an address that is not mapped"
_FOLLOWS = frozenset({45, 63, 92, 154})
"""Xids that another error entails, or that end nothing."""
_OF_PROGRAM = {
    13: "a kernel of the program failed",
    31: _UNMAPPED,
    43: "a kernel of the program failed",
}
_OF_DEVICE = {
    48: "uncorrectable memory error",
    62: "its internal controller halted",
    64: "a damaged row of its memory cannot be replaced",
    74: "NVLink error",
    79: "it has fallen off the bus",
    94: "uncorrectable memory error",
    95: "uncorrectable memory error",
    119: "its firmware (GSP) does not answer",
    120: "error of its firmware (GSP)",
    140: "uncorrectable memory error",
    145: "NVLink error",
    149: "NVLink error",
}


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """What a kernel says of a process, or of a device and the process that used it.

    A `program` makes a device fail by a kernel of its own. `what` tells a crash, the error of a
    device, or how long a process was blocked.
    """

    kind: Literal["killed", "crashed", "blocked", "device", "program"]
    pid: int  # below 0: unknown
    name: str = ""  # of the process
    what: str = ""
    address: str = ""  # of the device
    when: str = ""  # as the log has it
    boot_ns: int | None = None  # since the host booted, where the log says that
    host: str = ""


def messages(text: str) -> list[KernelMessage]:
    """Return what a log says of processes and devices, in its order."""
    found: list[KernelMessage] = []
    nameless: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for line in _MARKED.finditer(text):
        if (one := _message(line[0])) is None:
            continue
        if one.pid < 0:
            nameless[one.host, one.address].append(len(found))
        elif one.address:  # the errors that follow name the process
            for place in nameless.pop((one.host, one.address), []):
                found[place] = replace(found[place], pid=one.pid)
        if one.what or not one.address:
            found.append(one)
        if len(found) == _MOST:
            break
    return found


def _message(line: str) -> KernelMessage | None:
    """Return what a line says; of an error that only follows another one, nothing but the pid."""
    prefix = _PREFIX.match(line)
    known = prefix.groupdict(default="") if prefix else defaultdict(str)
    boot_s = known["boot_s"]
    common = KernelMessage(
        "killed",
        -1,
        when=known["date"] or known["stamp"] or (f"{boot_s} s after boot" if boot_s else ""),
        boot_ns=round(float(boot_s) * 1e9) if boot_s else None,
        host=known["host"],
    )
    if match := _KILLED.search(line):
        return replace(common, pid=int(match[1]), name=match[2])
    if match := _CRASHED.search(line):
        what = match[3] + (f" in {match[4]}" if match[4] else "")
        return replace(common, kind="crashed", pid=int(match[2]), name=match[1], what=what)
    if match := _BLOCKED.search(line):
        return replace(
            common, kind="blocked", pid=int(match[2]), name=match[1], what=f"{match[3]} s"
        )
    if match := _XID.search(line):
        return _xid(match, common)
    return _of_amd(match, common) if (match := _OF_AMD.search(line)) else None


def _xid(match: re.Match[str], common: KernelMessage) -> KernelMessage | None:
    xid, pid = int(match[2]), int(match[3] or -1)
    if xid in _FOLLOWS:
        return replace(common, kind="device", pid=pid, address=match[1]) if pid >= 0 else None
    meaning = _OF_PROGRAM.get(xid) or _OF_DEVICE.get(xid)
    return replace(
        common,
        kind="program" if xid in _OF_PROGRAM else "device",
        pid=pid,
        what=f"Xid {xid}" + (f", {meaning}" if meaning else ""),
        address=match[1],
    )


def _of_amd(match: re.Match[str], common: KernelMessage) -> KernelMessage | None:
    named = _PID_OF_AMD.search(match.string)
    pid = int(named[1]) if named else -1
    found = replace(common, pid=pid, address=match["address"])
    if match["unmapped"]:
        return replace(found, kind="program", what=_UNMAPPED)
    if match["failed"]:
        what = "a reset" if match["failed"].startswith("GPU") else "an uncorrectable hardware error"
        return replace(found, kind="device", what=what)
    return replace(found, kind="device") if named else None
