"""Tables of bandwidth benchmarks in logs: nccl-tests, all_reduce_bench.py, DeepSpeed's ds_bench.

Early releases of all_reduce_bench.py print three lines a trial: `duration: … sec`,
`algo throughput: … bps` of twice the payload, and `busbw: … Gbps`. Bandwidths are kept in bytes/s:
nccl-tests and all_reduce_bench.py print 10^9 bytes, ds_bench 10^9 bits or bytes as its heading
says. What precedes a table names the operation, the ranks and their devices.
"""

from __future__ import annotations

import re

from dsprof.trace.rank_log import Measured, RankLog
from dsprof.trace.readers.logs.prefix import before_block, without

MARKS = (
    *(b"busbw", b"BusBW", b"# Collective test starting", b"  Rank ", b"- hardware: "),
    *(b"average bandwidth of ", b"Performance of ", b" duration: ", b"algo throughput: "),
    b": Test ",
)
"""Marks of a line that begins a table, or says what it is of."""

_UNITS: dict[str, int] = {unit: 1024**i for i, unit in enumerate(("B", "K", "M", "G", "T"))}
_FLOAT = r"(\d{1,16}(?:\.\d{1,12})?)"
_TIME = rf"{_FLOAT}(?:e\+\d\d)?"  # from 10 s on
_WRONG = r"(?:\d{1,16}|N/A|\d(?:\.\d{1,12})?e[+-]\d\d)"
_NCCL_TESTS = re.compile(
    # Early releases print no root, and no reduction where there is none.
    r"^\s*(?P<size>\d{1,16})\s+\d{1,16}\s+[a-z]\w*\s+(?:[a-z]\w*\s+)?(?:-?\d{1,7}\s+)?"
    rf"{_TIME}\s+{_FLOAT}\s+(?P<busbw>{_FLOAT})\s+(?P<wrong>{_WRONG})"
    # Out of place, then in place; four times of single iterations may follow each.
    rf"(?:(?:(?:\s+{_TIME}){{4}})?\s+{_TIME}(?:\s+{_FLOAT}){{2}}\s+(?P<wrong_in_place>{_WRONG}))?"
    r"(?:\s|$)"
)
_ALL_REDUCE_BENCH = re.compile(
    rf"^\|\s*(?P<size>\d{{1,4}})(?P<unit>[KMGT]?)iB \|\s*(?P<busbw>{_FLOAT})GBps \|"
)
_DS_BENCH = re.compile(
    rf"^\s*(?P<size>\d{{1,16}}(?:\.\d{{1,4}})?)(?: ?(?P<unit>[KMGT]?)B)?\s+\S+\s+"
    rf"{_FLOAT}(?: ?[um]?s)?\s+{_FLOAT}\s+(?P<busbw>{_FLOAT})\s*$"
)
_TRIAL = re.compile(
    rf"^\s*(?P<name>duration|algo throughput|busbw): (?P<value>{_FLOAT}) +"
    r"(?:sec|bps,.*|Gbps)\s*$"
)
_HEADING = re.compile(r"algbw\s+busbw|\| payload \||BusBW \((?P<unit>G[bB]ps)\)")
_OPERATION = re.compile(
    r"(?:average bandwidth of|Performance of|Collective test starting:) (?P<op>[a-z2_]{3,40}?)"
    r"(?:_perf)?(?: (?:over|on) (?P<ranks>\d{1,7}) (?:ranks|devices))?\b"
)
_NODE = re.compile(r"^[A-Za-z][\w.-]{0,99}:(?: |$)(?!\d[\d.]* +(?:sec|bps|Gbps))")
"""pdsh, the launcher of DeepSpeed on several nodes, puts the name of the node before a line."""
_TAG = re.compile(r"\[\d{1,7},\d{1,7}\]<std(?:out|err)>:")
"""mpirun --tag-output puts it before each part of a row that is printed on its own."""
_BEGINS = re.compile(
    r"# (?:Collective test starting|nThread|Using devices)|#  Rank|#\s+size\s|\| payload \|"
    r"|The average bandwidth of "
)
_LONGEST_PREFIX = 300
_MOST_BETWEEN = 32
"""Lines of other writers that come between two rows; those of NCCL, of any number, are not seen."""
_RANK = re.compile(
    r"^#\s+Rank\s+(?P<rank>\d+) (?:Group\s+\d+ )?Pid\s+\d+ on\s+(?P<host>\S{1,255}) device\s+\d+ "
    r"\[[0-9a-fA-Fx:.]+\] (?P<name>.{1,99})"
)
_HARDWARE = re.compile(r"- hardware: \w+\(name='(?P<name>[^']{1,99})'")
_MOST_ROWS = 256
_MOST_NAMED = 2
"""Hosts of a benchmark that are named; a slow or bad one is among them."""
_MOST_WRONG = 1 << 50
_MOST_BUSBW = 1e13  # in bytes/s, above the device memory of today: the row is damaged
_LEAST_WITH_EXPONENT = 1e5  # of a count, which is printed with six digits


class BenchmarkTables:
    """Collects the rows of all tables of one file."""

    def __init__(self) -> None:
        self._op = ""
        self._ranks = 0
        self._hosts: set[str] = set()
        self._device = ""
        self._trial: dict[str, float] = {}
        self._left = 0  # lines of others until the table is over
        self._before = before_block("")  # a line
        self._unit = 0.0  # of ds_bench

    @property
    def is_open(self) -> bool:
        """Whether rows of a table come next."""
        return self._left > 0

    def take(self, line: str, log: RankLog) -> None:
        """Take a line, which is not of NCCL."""
        if begin := _BEGINS.search(line, 0, _LONGEST_PREFIX):
            self._before = before_block(line[: begin.start()])
        text = _NODE.sub("", _TAG.sub("", without(self._before, line)))
        if row := self._row(text):
            self._left = _MOST_BETWEEN if self.is_open else 0
            if len(log.measured) < _MOST_ROWS:
                log.measured.append(row)
        elif heading := _HEADING.search(text):
            self._left = _MOST_BETWEEN
            self._unit = {None: 0.0, "GBps": 1e9, "Gbps": 1e9 / 8}[heading["unit"]]
        else:
            self._left -= self.is_open
        self._learn(text)

    def _row(self, text: str) -> Measured | None:
        if found := _TRIAL.match(text):
            return self._of_trial(found["name"], float(found["value"]))
        if not self.is_open:
            return None
        if found := _NCCL_TESTS.match(text):
            wrong = _wrong(found["wrong"]) + _wrong(found["wrong_in_place"] or "0")
            return self._measured(int(found["size"]), float(found["busbw"]) * 1e9, wrong)
        if found := _ALL_REDUCE_BENCH.match(text):
            return self._measured(_bytes(found), float(found["busbw"]) * 1e9)
        if self._unit and (found := _DS_BENCH.match(text)):
            return self._measured(_bytes(found), float(found["busbw"]) * self._unit)
        return None

    def _of_trial(self, name: str, value: float) -> Measured | None:
        self._trial[name] = value
        if name != "busbw" or len(self._trial) < 3:
            return None
        sent_bits = self._trial["duration"] * self._trial["algo throughput"]
        self._trial, self._op = {}, self._op or "all_reduce"
        return self._measured(round(sent_bits / 8 / 2), value * 1e9 / 8)

    def _measured(self, nbytes: int, busbw: float, wrong: int = 0) -> Measured | None:
        if busbw > _MOST_BUSBW:
            return None
        names = tuple(sorted(self._hosts)) if len(self._hosts) <= _MOST_NAMED else ()
        return Measured(
            *(self._op, nbytes, busbw, self._ranks, len(self._hosts), self._device, wrong, names)
        )

    def _learn(self, text: str) -> None:
        if found := _RANK.match(text):
            if int(found["rank"]) == 0:  # of the next benchmark of the file
                self._ranks, self._hosts = 0, set()
            self._ranks = max(self._ranks, int(found["rank"]) + 1)
            self._hosts.add(found["host"])
            self._device = found["name"].strip()
        elif found := _HARDWARE.search(text):
            self._device = found["name"]
        elif found := _OPERATION.search(text):
            self._op = found["op"]
            self._hosts = set() if found["ranks"] else self._hosts
            self._ranks = int(found["ranks"] or self._ranks)


def _wrong(count: str) -> int:
    """Return how many elements are wrong; old releases print the largest error, as 5e-07."""
    found = 0.0 if count == "N/A" else float(count)
    return 0 if "e" in count and found < _LEAST_WITH_EXPONENT else min(int(found), _MOST_WRONG)


def _bytes(found: re.Match[str]) -> int:
    return round(float(found["size"]) * _UNITS[found["unit"] or "B"])
