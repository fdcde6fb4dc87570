"""Settings of DeepSpeed that cancel each other, or that do something else than they say.

conflicts.csv lists those that DeepSpeed accepts without a message. `before` is the first release of
which one no longer holds. `flags` are fields of `Combination` that are true, `of_overlap` for
defects of overlap_comm at stages 1 and 2, and `never_overlaps` for the one that hides nothing.
Conditions in `when` leave out what asks for a setting: offloading sets contiguous_gradients, Muon,
prescale_gradients and gradient_predivide_factor need reduce_scatter false at stage 3, and
overlap_comm at stage 1 needs managed accumulation.

Read in the sources of DeepSpeed 0.19.8; what is said of overlap_comm before 0.19, in those of
0.14.2 to 0.18.9.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from dsprof.files.tables import rows
from dsprof.findings.finding import Severity
from dsprof.rules.knowledge.deepspeed.combinations import Combination, when
from dsprof.rules.knowledge.releases import release

_STAGE = "zero_optimization.stage"
_ROWS = rows("rules/knowledge/deepspeed/conflicts.csv")

AT_ODDS: tuple[Combination, ...] = tuple(
    Combination(
        when(row["when"]),
        row["says"],
        row["do"],
        Severity(row["severity"]),
        since=release(row["since"]) or (),
        before=release(row["before"]),
        config_patch=json.loads(row["config_patch"] or "null"),
        only_written="only_written" in row["flags"].split(),
        only_before="only_before" in row["flags"].split(),
        overlaps="overlaps" in row["flags"].split(),
    )
    for row in _ROWS
)
"""Conflicts that DeepSpeed accepts without a message."""


def _with_flag(flag: str) -> Iterator[Combination]:
    return (one for one, row in zip(AT_ODDS, _ROWS, strict=True) if flag in row["flags"].split())


OVERLAP_FAULTS = (*_with_flag("of_overlap"),)
"""Defects of overlap_comm at stages 1 and 2, by release."""

NEVER_OVERLAPS = next(_with_flag("never_overlaps"))


def before_overlapping(version: str, stage: int | None) -> str:
    """Return what must be done before overlap_comm is set to true at a stage, "" if nothing.

    An unknown version has no known defect.
    """
    of = release(version)
    faults = (fault for fault in OVERLAP_FAULTS if of and fault.concerns(of))
    says = next((fault.says for fault in faults if fault.when[_STAGE](stage)), "")
    return f" Upgrade to DeepSpeed 0.19.0 or later first: {says}." if says else ""
