"""Output of DeepSpeed's comms_logger: a line per call, and the table of `log_summary`.

Sizes are in units of 1024 although they are called KB, bandwidths in 10^9 bits. The bandwidths
are computed from the size in ways that changed with the versions, so only sizes and times are
taken over. From DeepSpeed 0.18.3 to 0.19.8 each time is the sum of all before it under the same
name: lines can be taken apart again, sums of sums cannot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from dsprof.trace.rank_log import CallKind, LoggedCalls, RankLog, Room

_FIRST_CUMULATIVE, _LAST_CUMULATIVE = (0, 18, 3), (0, 19, 8)
_RISING_CALLS = 8
"""Times of one name that never fall in this many lines are sums: by chance that is 1 in 40,000."""
_MOST_ROWS = 1 << 12

_UNITS = {unit: 1024**i for i, unit in enumerate(("B", "KB", "MB", "GB", "TB"))}
_NUMBER = r"(\d{1,15}(?:\.\d{1,4})?)"
_LINE = re.compile(
    r"comm op: (?P<name>[^|]{1,100}?)(?: \| \[Caller Func: (?P<caller>[^\]]{0,100})\])? \| "
    rf"time \(ms\): (?P<ms>{_NUMBER}) \| msg size: (?P<size>[\d.]{{1,15}} ?[KMGT]?B) \| "
    rf"algbw \(Gbps\): (?P<algbw>{_NUMBER})\s+\| busbw \(Gbps\): (?P<busbw>{_NUMBER})"
)
_NAME = re.compile(
    r"^(?P<name>[a-z][a-z_0-9]{2,60})(?: \| \[Caller Func: (?P<caller>.{0,100})\])?$"
)
_ROW = re.compile(
    rf"^\s+(?P<size>[\d.]{{1,15}} ?[KMGT]?B)\s+(?P<calls>\d{{1,12}})\s+{_NUMBER}\s+{_NUMBER}"
    rf"\s+{_NUMBER}\s+{_NUMBER}\s*$"
)
VERSION = re.compile(r"DeepSpeed info: version=(\d{1,4})\.(\d{1,4})\.(\d{1,4})")


@dataclass(slots=True)
class _Lines:
    """The lines of one name: sums by kind, of their times and of what each time grew by."""

    kinds: dict[CallKind, LoggedCalls] = field(default_factory=dict)
    grown_ns: dict[CallKind, int] = field(default_factory=dict)
    count: int = 0
    before_ms: float = 0.0
    has_risen: bool = True

    def add(self, kind: CallKind, ms: float, calls: LoggedCalls) -> None:
        is_less = ms < self.before_ms
        # A time that falls is the first of another run in the same log.
        grown_ns = round((ms if is_less else ms - self.before_ms) * 1e6)
        self.kinds[kind] = self.kinds[kind] + calls if kind in self.kinds else calls
        self.grown_ns[kind] = self.grown_ns.get(kind, 0) + grown_ns
        self.count, self.before_ms = self.count + 1, ms
        self.has_risen &= not is_less


@dataclass(slots=True)
class CommsLoggerText:
    """Collects what the logger printed into one log, then says what holds."""

    room: Room = field(default_factory=Room)
    version: tuple[int, ...] = ()
    _lines: dict[tuple[str, str], _Lines] = field(default_factory=dict)
    _table: dict[CallKind, LoggedCalls] = field(default_factory=dict)
    _stragglers: dict[CallKind, int] = field(default_factory=dict)
    _heading: str = ""
    _name: tuple[str, str] = ("", "")

    def line(self, text: str) -> bool:
        """Take a line of one call; say whether it is one."""
        match = _LINE.search(text)
        if match is None:
            return False
        name, caller = match["name"].strip(), match["caller"] or ""
        kind = (name, caller, _bytes(match["size"]))
        lines = self._lines.get(kind[:2])
        if (lines is not None and kind in lines.kinds) or self.room.take():
            ms, algbw, busbw = float(match["ms"]), float(match["algbw"]), float(match["busbw"])
            lines = lines or self._lines.setdefault(kind[:2], _Lines())
            lines.add(kind, ms, _logged(1, ms, kind[2], algbw, busbw))
        return True

    def heading(self, text: str) -> bool:
        """Begin a table; its rows replace those of an earlier one, which counts the same calls."""
        if "Message Size" not in text:
            return False
        self._heading = "stragglers" if "straggler" in text.lower() else "summary"
        return True

    def row(self, text: str) -> bool:
        """Take a line of a table; false where the table ends."""
        if match := _NAME.match(text.strip()):
            self._name = match["name"], match["caller"] or ""
            return True
        match = _ROW.match(text)
        if match is None or not self._name[0]:
            return bool(text.strip()) and set(text.strip()) <= set("_- ")
        kind = (*self._name, _bytes(match["size"]))
        calls = int(match["calls"])
        first, second, third, fourth = (float(match[i]) for i in (3, 4, 5, 6))
        if len(self._table) < _MOST_ROWS and self.room.take():
            if self._heading == "summary":
                logged = _logged(calls, second * calls, kind[2] * calls, third, fourth)
                self._table[kind] = replace(logged, total_ns=round(first * 1e6), source="summary")
            else:
                self._stragglers[kind] = round(second * 1e6)
        return True

    def tell(self, log: RankLog) -> None:
        """Add what holds to a log."""
        is_cumulative = self._is_cumulative()
        for lines in self._lines.values():
            for kind, calls in lines.kinds.items():
                total_ns = lines.grown_ns[kind] if is_cumulative else calls.total_ns
                log.calls[kind] = replace(calls, total_ns=total_ns)
        for kind, row in self._table.items():
            if is_cumulative and kind in log.calls:
                continue
            late = self._stragglers.get(kind)
            log.calls[kind] = replace(
                row,
                total_ns=None if is_cumulative else row.total_ns,
                straggler_ns=None if is_cumulative else late,
            )
        if is_cumulative:
            said = ".".join(map(str, self.version)) or "of a version that the log does not name"
            log.comms_logger = f"DeepSpeed {said} logs sums of all times so far"

    def _is_cumulative(self) -> bool:
        if self.version:
            return _FIRST_CUMULATIVE <= self.version <= _LAST_CUMULATIVE
        long = [lines for lines in self._lines.values() if lines.count >= _RISING_CALLS]
        return bool(long) and all(lines.has_risen for lines in long)


def _logged(calls: int, ms: float, nbytes: int, algbw: float, busbw: float) -> LoggedCalls:
    return LoggedCalls(
        calls, round(ms * 1e6), _world_size(algbw, busbw), _factor(ms, nbytes, algbw)
    )


def _world_size(algbw: float, busbw: float) -> int:
    """Return n where busbw / algbw is (n-1)/n within the two decimals that are printed; else 0."""
    if not 0 < busbw < algbw:
        return 0
    size = round(1 / (1 - busbw / algbw))
    error = 0.01 * (1 + busbw / algbw) / algbw
    return size if abs((size - 1) / size - busbw / algbw) <= error < 0.5 / size**2 else 0


def _factor(ms: float, nbytes: int, algbw: float) -> int:
    """Return how often the size went into the bandwidth, 0 where rounding hides it."""
    if not ms or not nbytes:
        return 0
    factor = algbw * 1e9 * ms / 1e3 / 8 / nbytes
    whole = round(factor)
    return whole if whole and abs(factor - whole) <= 0.1 * whole and ms >= 0.05 else 0


def _bytes(size: str) -> int:
    match = re.match(r"([\d.]+) ?([KMGT]?B)", size)
    try:
        return round(float(match[1]) * _UNITS[match[2]]) if match else 0
    except ValueError:
        return 0
