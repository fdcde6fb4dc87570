"""Threads that communicate beside the training, such as that of an asynchronous checkpoint."""

from __future__ import annotations

import numpy as np

from dsprof.trace.rank_trace import RankTrace


def mark_background(trace: RankTrace) -> None:
    """Mark the collectives of threads beside the training: no step waits while they wait.

    Such a thread runs no phase. Threads of the autograd engine run none either, but they
    communicate in backward only.
    """
    rows = trace.collectives
    training = {span.thread for span in trace.spans if not span.is_annotation}
    if not training or not len(rows):
        return
    others = (rows.thread > 0) & ~np.isin(rows.thread, list(training))
    if others.any():
        beside = np.unique(rows.thread[others & (rows.phase != rows.code("backward"))])
        rows.is_background = np.isin(rows.thread, beside)
