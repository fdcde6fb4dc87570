"""How fast collectives are once all ranks have come, for the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis import model
from dsprof.rules.hardware.judged_transfers import Judged, Thresholds, judged

_ROWS = 100
_RULE = "low-bus-bandwidth"


def transfers(summary: RunSummary, thresholds: Mapping[str, Any]) -> list[model.TransferRow]:
    """List transfers by group, operation and size, up to 100."""
    given: Thresholds = thresholds.get(_RULE, Thresholds())
    return [_row(row, given) for row in judged(summary, given)[:_ROWS]]


def _row(row: Judged, thresholds: Thresholds) -> model.TransferRow:
    transfer, path = row.transfer, row.transfer.path
    return model.TransferRow(
        op=path.op,
        group=path.group,
        group_size=path.group_size,
        hosts=path.nodes,
        size_class=path.size_class,
        calls=transfer.calls,
        bytes=transfer.nbytes,
        time_ns=transfer.time_ns,
        algbw=transfer.algbw,
        busbw=transfer.busbw,
        quick_busbw=transfer.quick_busbw,
        expected_busbw=row.expected.busbw if row.expected else None,
        expected_from=row.expected.source if row.expected else "",
        is_judged=row.expected is not None and row.is_fair(thresholds),
    )
