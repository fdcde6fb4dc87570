"""Threads that communicate beside the training, such as that of an asynchronous checkpoint."""

from __future__ import annotations

import numpy as np

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import AT_WORK


def mark_background(trace: RankTrace) -> None:
    """Mark the collectives of threads beside the training: no step waits while they wait.

    Such a thread runs no phase, and communicates while another one is in forward or in the
    optimizer's step. Threads of the autograd engine run none either, but do not do that.
    """
    rows = trace.collectives
    training = {span.thread for span in trace.spans if not span.is_annotation}
    if not training or not len(rows):
        return
    others = (rows.thread > 0) & ~np.isin(rows.thread, list(training))
    if others.any():
        at_work = np.isin(rows.phase, [rows.code(phase) for phase in AT_WORK])
        rows.is_background = np.isin(rows.thread, np.unique(rows.thread[others & at_work]))
