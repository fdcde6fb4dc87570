"""A kernel's log (`dmesg`, `journalctl -k`): processes it killed or saw crash, devices that failed.

Errors of NVIDIA's driver have numbers: https://docs.nvidia.com/deploy/xid-errors/. AMD's says in a
line of its own which process caused a page fault.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Literal

import msgspec

from dsprof.files.decoding import UNDECODABLE

_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_SYSLOG = (
    rf"{_ISO}(?:Z|[+-]\d\d:?\d\d)?|\w{{3}} {_ISO} [A-Z]\w{{1,4}}"
    r"|\w{3} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?|\d{9,10}\.\d{6}"
)
_OF_DMESG = (
    r"\[ *(?P<boot_s>\d{1,9}\.\d{6})(?: ?< *[\d.]{1,20} ?>)?\]"
    r"|\[(?P<date>[^\d\[\]][^\[\]]{4,24} \d\d:\d\d:\d\d \d{4})\]"  # in any language
    r"|\[(?P<minute>\w{3}[ \d]\d \d\d:\d\d)\]|\[ *\+\d{1,9}\.\d{6}\]"
    r"|(?P<iso>\d{4}-\d\d-\d\dT[\d:]{8},\d{6}[+-]\d\d:\d\d)"
)
_RFC_5424 = r"<\d{1,3}>1 "
_LEVEL = rf"(?:{_RFC_5424}|<\d{{1,3}}>|\w{{1,8}} *:\w{{1,8}} *: )?"
_BY_KERNEL = r" (?:(?P<host{0}>[\w.:-]{{1,253}}) )?kernel(?::| - - -)"
_LINE = re.compile(
    rf"{_LEVEL}(?:(?:{_OF_DMESG})(?:{_BY_KERNEL.format(1)})?|(?P<stamp>{_SYSLOG})"
    rf"{_BY_KERNEL.format(2)} ?(?:\[ *(?P<since_boot_s>\d{{1,9}}\.\d{{6}})\])?)"
    r" ?(?:\[ *[TC]\d{1,9}\])? (?P<said>.{1,400})"
)
_KMSG = re.compile(r"\d{1,3},\d{1,20},(\d{1,15}),[c+-](?:,[^;]{1,99})?;")
"""How /dev/kmsg begins a line: level, number, time in µs, flags."""
_COLOUR = re.compile(r"\x1b\[[\d;]{0,20}m")

START = re.compile(
    r"^\{[^\n]{1,4000}\"_TRANSPORT\":\"kernel\""
    rf"|^{_KMSG.pattern}|^{_RFC_5424}{_ISO}"
    rf"|^(?:{_COLOUR.pattern})?{_LEVEL}"
    rf"(?:{_OF_DMESG}|(?:{_SYSLOG}) (?:[\w.:-]{{1,253}} )?[^\s:]{{1,64}}:[ \[])",
    re.MULTILINE,
)
"""How a log begins to which kernels write, perhaps beside other programs."""

_WORDS = (
    b"Killed process ",
    b"segfault ",
    b"general protection fault ",
    b"] trap ",
    b" blocked for more than ",
    b"Xid (",
    b"amdgpu ",
)
"""Lines without any of these say nothing; to look for them first takes a fifth of the time."""
_MINUTE = re.compile(rb"(?:\x1b\[[\d;]*m)?\[\w{3}[ \d]\d \d\d:\d\d\]")
_BLOCK_BYTES = 1 << 20
_LONGEST = 4096

_KILLED = re.compile(
    r"(?:(?:Memory cgroup o|O)ut of memory[^:]{0,40}: )?"
    r"Killed process (\d{1,9})(?:, UID \d+,)? \((.{1,32}?)\)(?:[ ,]|$)"
)
_CRASHED = re.compile(
    r"(?:traps: )?([^\[]{1,32})\[(\d{1,9})\]:? "
    r"(segfault|general protection fault|trap \w{1,20}(?: \w{1,20}){0,3}(?= ip:))"
    r"(?:.{0,200} in ([\w.+-]{1,100})\[)?"
)
_BLOCKED = re.compile(r"INFO: task (.{1,32}):(\d{1,9}) blocked for more than (\d{1,6}) seconds")
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([\da-fA-F:.]{5,16})(?: [^)]{1,30})?\): (\d{1,4}), "
    r"(?:pid=(\d{1,9})(?:,|$))?"
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
_FOLLOWS = frozenset({45, 63, 92, 93, 106, 107, 121, 154, 156, 157, *range(160, 166), 171, 172})
"""Xids that another error entails, or that end nothing."""
_NVLINK_5 = range(144, 151)
"""Xids of which the message says whether they are fatal."""
_OF_PROGRAM = {
    13: "a kernel of the program failed",
    31: _UNMAPPED,
    43: "a kernel of the program failed",
    69: "a kernel of the program failed",
    137: "a kernel of the program accessed memory of another GPU that is not mapped",
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
    **dict.fromkeys(_NVLINK_5, "NVLink error"),
}


_STAMP = re.compile(
    r"(?:\w{3} )?(?:(?P<year>\d{4})-(?P<month>\d\d)-|(?P<name>\w{3}) ?)(?P<day>[ \d]?\d)[T ]"
    r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d))?(?:[.,]\d+)?(?: (?P<last>\d{4}))?"
    r"(?: ?(?P<zone>Z|UTC|GMT|[+-]\d\d:?\d\d)| \w{2,5})?"
)
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_YEAR_NS = 31_556_952 * 10**9
_ZONES_H = (-14, 12)  # from a local time to that of UTC


class _Entry(msgspec.Struct):
    """A line of `journalctl --output json`."""

    said: str = msgspec.field(name="MESSAGE")
    host: str = msgspec.field(name="_HOSTNAME")
    by: str = msgspec.field(name="_TRANSPORT")
    at_us: str = msgspec.field(name="__REALTIME_TIMESTAMP")

    def as_line(self) -> str:
        """Return it as `journalctl --output short-unix` does."""
        by = f"{self.host} {self.by}"
        return f"{self.at_us[:-6]}.{self.at_us[-6:]} {by}: {self.said}"


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

    def between_ns(self, near_ns: int) -> tuple[int, int] | None:
        """Return the first and the last moment on the wall clock that `when` can mean, if any.

        Most logs do not tell the time zone, and some not the year: it is the one that comes
        nearest to `near_ns`.
        """
        if self.when.replace(".", "").isdecimal():  # since 1970
            since_ns = int(self.when.partition(".")[0]) * 10**9
            return since_ns, since_ns
        if (match := _STAMP.fullmatch(self.when)) is None:
            return None
        near_year = 1970 + near_ns // _YEAR_NS
        year = match["year"] or match["last"]
        years = [int(year)] if year else range(near_year - 1, near_year + 2)
        found = [at_ns for year in years if (at_ns := _moment_ns(match, year)) is not None]
        if not found:
            return None
        at_ns = min(found, key=lambda at_ns: abs(at_ns - near_ns))
        first, last = (0, 0) if match["zone"] else (hours * 3600 * 10**9 for hours in _ZONES_H)
        return at_ns + first, at_ns + last


def _moment_ns(match: re.Match[str], year: int) -> int | None:
    """Return a time of a log, in UTC where it does not tell its zone; None: there is none."""
    try:
        month = int(match["month"] or _MONTHS.index(match["name"].title()) + 1)
        clock = int(match["hour"]), int(match["minute"]), int(match["second"] or 0)
        at = datetime(year, month, int(match["day"]), *clock, tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        return None
    zone = (match["zone"] or "").replace(":", "")
    if zone[:1] in ("+", "-") and zone:
        off = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:]))
        at = at - off if zone[0] == "+" else at + off
    return round(at.timestamp()) * 10**9


def marked(start: bytes, read: Callable[[int], bytes]) -> str:
    """Return the lines of a log of any length that may say something, the latest if too many."""
    kept: deque[bytes] = deque(maxlen=_MOST)
    rest = start
    while block := read(_BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        rest = rest[:_LONGEST]
        kept += (
            line[:_LONGEST]
            for line in lines
            if any(word in line for word in _WORDS) or _MINUTE.match(line)
        )
    return b"\n".join([*kept, rest]).decode(errors="replace")


def messages(text: str) -> list[KernelMessage]:
    """Return what a log says of processes and devices, in its order."""
    found: list[KernelMessage] = []
    nameless: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    minute = ""
    for line in text.split("\n"):
        if (match := _LINE.match(_plain(line))) is None:
            continue
        minute = match["minute"] or minute
        if (one := _message(match, minute)) is None:
            continue
        if one.pid < 0:
            nameless[one.host, one.address].append(len(found))
        elif one.address:  # the errors that follow name the process
            for place in nameless.pop((one.host, one.address), []):
                found[place] = replace(found[place], pid=one.pid)
        if one.what or not one.address:
            found.append(one)
    return found


def _plain(line: str) -> str:
    with suppress(*UNDECODABLE):
        if line.startswith("{"):
            return msgspec.json.decode(line, type=_Entry).as_line()
    line = _COLOUR.sub("", line.rstrip())
    if kmsg := _KMSG.match(line):
        return f"[{int(kmsg[1]) / 1e6:.6f}] {line[kmsg.end() :]}"
    return line


def _message(line: re.Match[str], minute: str) -> KernelMessage | None:
    """Return what a line says; of an error that only follows another one, nothing but the pid.

    `minute` is the last one that a log with relative times tells.
    """
    known = line.groupdict(default="")
    boot_s = known["boot_s"] or known["since_boot_s"]
    when = known["date"] or known["iso"] or known["stamp"] or minute
    common = KernelMessage(
        "killed",
        -1,
        when=when or (f"{boot_s} s after boot" if boot_s else ""),
        boot_ns=round(float(boot_s) * 1e9) if boot_s else None,
        host=known["host1"] or known["host2"],
    )
    said = known["said"]
    if match := _KILLED.match(said):
        return replace(common, pid=int(match[1]), name=_printable(match[2]))
    if match := _CRASHED.match(said):
        what = match[3] + (f" in {match[4]}" if match[4] else "")
        common = replace(common, pid=int(match[2]), name=_printable(match[1]))
        return replace(common, kind="crashed", what=what)
    if match := _BLOCKED.match(said):
        common = replace(common, pid=int(match[2]), name=_printable(match[1]))
        return replace(common, kind="blocked", what=f"{match[3]} s")
    if match := _XID.match(said):
        return _xid(match, common)
    return _of_amd(match, common) if (match := _OF_AMD.match(said)) else None


def _printable(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _xid(match: re.Match[str], common: KernelMessage) -> KernelMessage | None:
    xid, pid = int(match[2]), int(match[3] or -1)
    if xid in _FOLLOWS or (xid in _NVLINK_5 and " Nonfatal " in match.string):
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
