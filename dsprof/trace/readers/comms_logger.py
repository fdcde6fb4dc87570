"""What DeepSpeed's comms_logger prints: a line a call, and the table of `log_summary`.

Sizes are in units of 1024 although they are called KB, bandwidths in 10^9 bits. The bandwidths
are computed from the size in ways that changed with the versions, so only sizes and times are
taken over. From DeepSpeed 0.18.3 to 0.19.8 each time is the sum of all before it under the same
name: lines can be taken apart again, sums of sums cannot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dsprof.trace.log import CallKind, LoggedCalls, RankLog

_FIRST_CUMULATIVE, _LAST_CUMULATIVE = (0, 18, 3), (0, 19, 8)
_RISING_CALLS = 8
"""So many times of one name that never fall are sums: by chance that is one in 40,000."""
_MOST_CALLS = 1 << 20

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
class CommsLoggerText:
    """Collects what the logger printed into one log, then says what holds."""

    version: tuple[int, ...] = ()
    _lines: dict[str, list[tuple[CallKind, float, LoggedCalls]]] = field(default_factory=dict)
    _count: int = 0
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
        ms, algbw, busbw = float(match["ms"]), float(match["algbw"]), float(match["busbw"])
        if self._count < _MOST_CALLS:
            self._count += 1
            calls = _logged(1, ms, kind[2], algbw, busbw)
            self._lines.setdefault(f"{name}|{caller}", []).append((kind, ms, calls))
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
        if len(self._table) < 4096:
            if self._heading == "summary":
                logged = _logged(calls, second * calls, kind[2] * calls, third, fourth)
                self._table[kind] = replace(logged, total_ns=round(first * 1e6), source="summary")
            else:
                self._stragglers[kind] = round(second * 1e6)
        return True

    def tell(self, log: RankLog) -> None:
        """Add what holds to a log."""
        names = {name: [ms for _, ms, _ in calls] for name, calls in self._lines.items()}
        is_cumulative = self._is_cumulative(list(names.values()))
        for calls in self._lines.values():
            before = 0.0
            for kind, ms, one in calls:
                if is_cumulative:
                    # A time that falls is the first of another run in the same log.
                    since = ms - before if ms >= before else ms
                    before, one = ms, replace(one, total_ns=round(since * 1e6))
                log.calls[kind] = log.calls[kind] + one if kind in log.calls else one
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

    def _is_cumulative(self, times: Sequence[Sequence[float]]) -> bool:
        long = [ms for ms in times if len(ms) >= _RISING_CALLS]
        rises = bool(long) and all(ms == sorted(ms) for ms in long)
        if self.version:
            return _FIRST_CUMULATIVE <= self.version <= _LAST_CUMULATIVE
        return rises


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
