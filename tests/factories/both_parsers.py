"""Native traces as C reads them, and as msgspec does alone: what comes of it must be the same."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dsprof.errors import TraceError
from dsprof.trace import comm_rows
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace


def read_by_both(path: Path) -> RankTrace:
    """Return the trace.

    Raises:
        TraceError: neither can read it.
    """
    with patch.object(comm_rows, "parse", None):
        alone = _outcome(path)
    outcome = _outcome(path)
    assert _contents(outcome) == _contents(alone)
    if isinstance(outcome, TraceError):
        raise outcome
    return outcome


def _outcome(path: Path) -> RankTrace | TraceError:
    try:
        return read_trace(path)
    except TraceError as error:
        return error


def _contents(outcome: RankTrace | TraceError) -> Any:
    if isinstance(outcome, TraceError):
        return str(outcome)
    held = {one.name: getattr(outcome, one.name) for one in fields(outcome)}
    rows = held.pop("collectives")
    columns = {one.name: getattr(rows, one.name) for one in fields(rows)}
    words = columns.pop("words")
    return repr((held, words, {name: (col.dtype, col.tolist()) for name, col in columns.items()}))
