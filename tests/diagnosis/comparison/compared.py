"""Two diagnoses, and what is said to have changed between them."""

from __future__ import annotations

from typing import Any

import msgspec

from dsprof.diagnosis.comparison.build import compare
from dsprof.diagnosis.comparison.model import Comparison, TimeChange
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.communication import CommunicationRow
from tests.factories import diagnosis as factory

MS = 1_000_000


def compared(before: Diagnosis, after: Diagnosis) -> Comparison:
    return compare(before, after, ("one", "two"))


def run(steps: int = 40, **changes: Any) -> Diagnosis:
    return factory.diagnosis(2, steps, **changes)


def slower(made: Diagnosis, factor: float, part: str = "compute_ns") -> Diagnosis:
    """The run with one part of each step, and the step with it, stretched."""
    rows = []
    for row in made.steps.rows:
        more = round(getattr(row, part) * (factor - 1))
        longer = {part: getattr(row, part) + more, "total_ns": row.total_ns + more}
        rows.append(msgspec.structs.replace(row, **longer))
    return msgspec.structs.replace(made, steps=msgspec.structs.replace(made.steps, rows=rows))


def times(comparison: Comparison) -> dict[str, TimeChange]:
    return {one.part: one for one in comparison.times}


def row(
    op: str = "all_reduce", calls: int = 160, nbytes: int = 1600, **fields: Any
) -> CommunicationRow:
    return CommunicationRow(
        **{
            "op": op,
            "requested": op,
            "group": "world",
            "group_size": 2,
            "phase": "backward",
            "size_class": "< 4 KiB",
            "dtype": "float32",
            "is_async": False,
            "on_wire": True,
            "calls": calls,
            "bytes": nbytes,
            "calls_per_step": 0.0,
            "bytes_per_step": 0.0,
            "in_flight_ns": None,
            "exposed_ns": None,
            "algbw": None,
            "busbw": None,
            **fields,
        }
    )


def with_rows(*rows: CommunicationRow, steps: int = 82) -> Diagnosis:
    return run(steps, communication=list(rows))
