"""Activity of hosts beside their devices, from the runtime calls of an nsys export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dsprof.trace.columns import IntArray
from dsprof.trace.device_activity import LAUNCH, HostWork
from dsprof.trace.readers.host_calls import bare, ends_of_captures, is_of_capture, kind_of, outer
from dsprof.trace.readers.nsys.device_work import LONGEST_NS
from dsprof.trace.readers.nsys.processes import process_of
from dsprof.trace.readers.nsys.sqlite import Tables

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_LONG_NS = 10_000
"""Shorter calls delay nothing, and shorter gaps of a device are ignored."""
_MOST_ROWS = 5_000_000
_MOST_NAMES = 10_000


def host_work(tables: Tables) -> dict[int, HostWork]:
    """Return the calls of each process by its global id; times are those of the file."""
    if not tables.has(RUNTIME, "start", "end", "globalTid", "nameId"):
        return {}
    names = _names(tables)
    kinds = {code: kind for code, name in names.items() if (kind := kind_of(name))}
    rows = _rows(tables, kinds, [code for code in kinds if is_of_capture(names[code])])
    launching = _launching(tables, kinds)
    processes = process_of(rows[2])
    return {
        int(process): _work(rows[:, processes == process], names, kinds, launching)
        for process in np.unique([*processes, *process_of(launching)])
    }


def _work(
    rows: IntArray, names: Mapping[int, str], kinds: Mapping[int, int], launching: IntArray
) -> HostWork:
    start, end, thread, code = rows
    codes, places = np.unique(code, return_inverse=True)
    kind = np.array([kinds[one] for one in codes.tolist()], np.int64)[places]
    words = ["", *(names[one] for one in codes.tolist())]
    name = places.astype(np.int64) + 1
    none = np.zeros(len(code), np.int64)
    return HostWork(
        words=words,
        name=name,
        kind=kind,
        start_ns=start,
        end_ns=ends_of_captures(np.stack([thread, start, end, name]), words),
        operator=none,
        annotation=none,
        launches=np.isin(thread, launching),
        operators=outer(rows[:2, kind == LAUNCH]),
    )


def _names(tables: Tables) -> dict[int, str]:
    """Return the names of runtime calls by their codes."""
    if not tables.has("StringIds", "id", "value"):
        return {}
    query = (
        f"SELECT id, substr(value, 1, 200) FROM StringIds "
        f"WHERE id IN (SELECT DISTINCT nameId FROM {RUNTIME}) LIMIT {_MOST_NAMES}"
    )
    return {code: bare(str(name)) for code, name in tables.rows(query) if type(code) is int}


def _rows(tables: Tables, kinds: Mapping[int, int], short: Sequence[int]) -> IntArray:
    """Return rows of starts, ends, threads and codes, of long calls of known kinds.

    Of the codes in `short` all calls are read.
    """
    query = (
        f'SELECT start, "end", globalTid, nameId FROM {RUNTIME} '
        f"WHERE nameId IN ({','.join(map(str, kinds))}) "
        f'AND ("end" - start >= {_LONG_NS} OR nameId IN ({",".join(map(str, short))})) '
        f"LIMIT {_MOST_ROWS}"
    )
    sound = [row for row in tables.integers(query) if -LONGEST_NS < row[0] <= row[1] < LONGEST_NS]
    table: IntArray = np.array(sound, np.int64).reshape(-1, 4).T
    return table


def _launching(tables: Tables, kinds: Mapping[int, int]) -> IntArray:
    """Return the threads that launch work of a device."""
    codes = ",".join(str(code) for code, kind in kinds.items() if kind == LAUNCH)
    query = f"SELECT DISTINCT globalTid FROM {RUNTIME} WHERE nameId IN ({codes}) LIMIT 100000"
    return np.array([thread for (thread,) in tables.integers(query)], np.int64)
