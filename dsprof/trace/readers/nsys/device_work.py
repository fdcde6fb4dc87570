"""Kernels, copies and memsets of an nsys export, as columns over all processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from dsprof.trace.columns import IntArray
from dsprof.trace.readers.devices import busiest
from dsprof.trace.readers.host_calls import outer
from dsprof.trace.readers.nsys.sqlite import Tables

Row = tuple[Any, ...]

KERNEL, COPY, GRAPH = range(3)
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
TABLES = {
    KERNELS: KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": COPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": COPY,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": GRAPH,
}
NEEDED = ("start", "end", "deviceId")
_COPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "UVM HtoD",
    12: "UVM DtoH",
}
_NAMES = ("demangledName", "shortName", "mangledName")
_CHUNK = 50_000
_NAMES_AT_ONCE = 500
_LONGEST_NAME = 2_000
LONGEST_NS = 10**16  # four months: later times are damage


def process_column(tables: Tables, table: str) -> str:
    """Return the column that says whose work a row is; by its device where there is none."""
    return "globalPid" if tables.has(table, "globalPid") else "deviceId"


@dataclass(slots=True)
class Work:
    """One row a kernel, copy, memset or whole graph; times in ns since the recording began."""

    process: IntArray
    device: IntArray
    stream: IntArray
    name: IntArray  # code in `words`
    kind: IntArray  # KERNEL, COPY or GRAPH
    start_ns: IntArray
    end_ns: IntArray
    words: list[str]
    elsewhere: IntArray = field(default_factory=lambda: np.zeros((2, 0), np.int64))
    """Starts and ends of what other devices of the same process did."""
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, tables: Tables) -> Work:
        """Read all tables that there are."""
        words: dict[str, int] = {}
        parts = [np.zeros((0, 7), np.int64)]
        for table, kind in TABLES.items():
            if tables.has(table, *NEEDED):
                parts += _table(tables, table, kind, words)
        columns = np.concatenate(parts).T
        process, device, stream, name, kinds, start, end = (column.copy() for column in columns)
        return cls(process, device, stream, name, kinds, start, end, list(words))

    def of_process(self, process: int) -> Work:
        """Return the rows of a process on the device that it used longest, and say what is left."""
        mine = self.process == process
        main, notes = busiest(self.device[mine], (self.end_ns - self.start_ns)[mine])
        kept = mine & (self.device == main)
        others = mine & ~kept
        elsewhere = outer(np.stack([self.start_ns[others], self.end_ns[others]]))
        if graphs := int(np.count_nonzero(kept & (self.kind == GRAPH))):
            notes.append(
                f"{graphs:,} CUDA graphs were recorded as wholes and count as computation, with "
                "all communication in them; nsys shows it with --cuda-graph-trace=node"
            )
        columns = ("process", "device", "stream", "name", "kind", "start_ns", "end_ns")
        chosen = {name: getattr(self, name)[kept] for name in columns}
        return replace(self, **chosen, elsewhere=elsewhere, notes=notes)


def _table(tables: Tables, table: str, kind: int, words: dict[str, int]) -> Iterator[IntArray]:
    """Yield the rows of a table, a chunk at a time, in the order of `Work`'s columns."""
    process, name = process_column(tables, table), _name_column(tables, table)
    stream = "streamId" if tables.has(table, "streamId") else "-1"
    query = f"SELECT {process}, deviceId, {stream}, {name}, {kind}, start, end FROM {table}"
    rows = _sound(tables, tables.rows(query))
    codes: dict[int, int] = {}
    while chunk := list(islice(rows, _CHUNK)):
        columns = _numbers(tables, chunk)
        fresh = [code for code in np.unique(columns[:, 3]).tolist() if code not in codes]
        for number, text in _texts(tables, table, fresh).items():
            codes[number] = words.setdefault(text, len(words))
        kinds, places = np.unique(columns[:, 3], return_inverse=True)
        columns[:, 3] = np.array([codes[code] for code in kinds.tolist()], np.int64)[places]
        yield columns


def _sound(tables: Tables, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of integers; others, of which a chunk may fill any memory, are counted."""
    for row in rows:
        if all(type(value) is int for value in row):
            yield row
        else:
            tables.broken += 1


def _numbers(tables: Tables, chunk: list[Row]) -> IntArray:
    """Return rows with sound times; what else a damaged file holds is counted."""
    columns = np.array(chunk, np.int64).reshape(-1, 7)
    start, end = columns[:, 5], columns[:, 6]
    good = (start > -LONGEST_NS) & (end >= start) & (end < LONGEST_NS)
    tables.broken += len(chunk) - int(np.count_nonzero(good))
    return columns[good]


def _name_column(tables: Tables, table: str) -> str:
    if table == KERNELS:
        return next((name for name in _NAMES if tables.has(table, name)), "-1")
    return "copyKind" if tables.has(table, "copyKind") else "-1"


def _texts(tables: Tables, table: str, numbers: list[int]) -> dict[int, str]:
    """Return what the numbers in a table's column of names mean."""
    if table != KERNELS:
        what = {"CUPTI_ACTIVITY_KIND_MEMSET": "Memset"}.get(table, "Memcpy")
        what = "CUDA graph" if TABLES[table] == GRAPH else what
        return {number: f"{what} {_COPY_KINDS.get(number, '')}".strip() for number in numbers}
    texts = dict.fromkeys(numbers, "kernel without a name")
    if tables.has("StringIds", "id", "value"):
        for i in range(0, len(numbers), _NAMES_AT_ONCE):
            some = numbers[i : i + _NAMES_AT_ONCE]
            marks = ",".join("?" * len(some))
            texts_of = f"SELECT id, substr(value, 1, {_LONGEST_NAME}) FROM StringIds"
            query = f"{texts_of} WHERE id IN ({marks})"
            texts |= {number: str(text) for number, text in tables.rows(query, *some)}
    return texts
