"""DDP's buckets: found among the collectives of its group by order and size.

DDP's reducer reduces bucket n only after bucket n-1, so within one backward the all_reduces of a
model are its buckets in order. Those of other sizes (the map of unused parameters, a user's own)
are skipped; a communication hook that halves the elements' size is recognised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dsprof.analysis.rank.intervals import Array
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import BucketLayout, Flush

LIBRARY = "DDP"
_CAP_BYTES, _FIRST_CAP_BYTES = 25 << 20, 1 << 20  # without bucket_cap_mb the first is smaller
_HALF = ("float16", "bfloat16")  # what communication hooks compress gradients to


def attach_buckets(trace: RankTrace) -> None:
    """Add a flush to `trace` for each bucket that DDP reduced, and refer its collective to it."""
    if not trace.layouts:
        return
    trace.collectives.flush = trace.collectives.flush.astype(np.int64)  # ids may need it
    for layouts in _by_group(trace.layouts).values():
        for rows in _backwards(trace, layouts[0].group):
            for row, index, layout in _matches(trace, rows, layouts):
                trace.collectives.flush[row] = trace.collectives.id[row]
                trace.flushes.append(_flush(trace, row, index, layout))


def _by_group(layouts: Sequence[BucketLayout]) -> dict[int, list[BucketLayout]]:
    found: dict[int, list[BucketLayout]] = {}
    for layout in layouts:
        found.setdefault(layout.group, []).append(layout)
    return found


def _backwards(trace: RankTrace, group: int) -> Iterator[Array]:
    """Yield the all_reduces of a group, in order, of one backward after another."""
    table, groups = trace.collectives, trace.groups
    if group not in groups:
        return
    same = [number for number, known in groups.items() if known.key == groups[group].key]
    reduces = table.of_families({"all_reduce"}) & (table.phase == table.code("backward"))
    chosen = np.isin(table.group, same) & reduces & (table.flush == 0)
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(table.issue_ns[rows], kind="stable")]
    where = np.stack([table.step[rows], table.micro_step[rows]], axis=1)
    cuts = np.flatnonzero(np.any(np.diff(where, axis=0), axis=1)) + 1
    yield from np.split(rows, cuts) if len(rows) else ()


def _matches(
    trace: RankTrace, rows: Array, layouts: Sequence[BucketLayout]
) -> Iterator[tuple[int, int, BucketLayout]]:
    """Yield row, bucket index and layout; of several models the one that explains most is first."""
    begin_ns = int(trace.collectives.issue_ns[rows[0]])
    latest = {layout.model: layout for layout in layouts if layout.since_ns <= begin_ns}
    left = rows
    while latest and len(left):
        found = {model: _explain(trace, left, layout) for model, layout in latest.items()}
        model = max(found, key=lambda model: len(found[model]))
        if not found[model]:
            return
        layout = latest.pop(model)  # a model is reduced once in a backward
        yield from ((row, index, layout) for index, row in enumerate(found[model]))
        left = np.setdiff1d(left, found[model], assume_unique=True)


def _explain(trace: RankTrace, rows: Array, layout: BucketLayout) -> list[int]:
    """Return the rows that are the first buckets of `layout`."""
    table, found = trace.collectives, list[int]()
    for row in rows.tolist():
        if len(found) == len(layout.nbytes):
            break
        nbytes = int(table.nbytes[row])
        factors = (1, 2) if table.words[table.dtype[row]] in _HALF else (1,)
        if layout.nbytes[len(found)] in (nbytes * factor for factor in factors):
            found.append(row)
    return found


def _capacity_bytes(layout: BucketLayout, index: int) -> int:
    """Return the limit of a bucket: one that another follows has reached it."""
    is_early = index == 0 and layout.is_rebuilt and len(layout.nbytes) > 1
    has_default = layout.capacity_bytes == _CAP_BYTES
    if is_early and has_default and _FIRST_CAP_BYTES <= layout.nbytes[0] < _CAP_BYTES:
        return _FIRST_CAP_BYTES
    return layout.capacity_bytes


def _flush(trace: RankTrace, row: int, index: int, layout: BucketLayout) -> Flush:
    table = trace.collectives
    is_last = index == len(layout.nbytes) - 1
    elements, nbytes = int(table.elements[row]), layout.nbytes[index]
    start_ns, end_ns = int(table.issue_ns[row]), int(table.done_ns[row] or table.return_ns[row])
    return Flush(
        id=int(table.id[row]),
        stage=-1,
        elements=elements,
        start_ns=start_ns,
        end_ns=max(start_ns, end_ns),
        capacity=_capacity_bytes(layout, index) * elements // nbytes if nbytes else 0,
        nbytes=int(table.nbytes[row]),
        dtype=table.words[table.dtype[row]],
        parameters=layout.parameters[index] if index < len(layout.parameters) else 0,
        cause="end of backward" if is_last else "full",
        step=int(table.step[row]),
        micro_step=int(table.micro_step[row]),
        phase="backward",
        library=LIBRARY,
        bucket=index,
    )
