"""Verdicts of hand-made runs, each checked to be one that can be shown."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.ending import Symptoms
from dsprof.analysis.hang.verdict import HangVerdict, verdicts
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import failing, summary


def judged(*traces: RankTrace, **looks: Symptoms) -> list[HangVerdict]:
    """Judge a run; `looks` are what was seen of ranks: r2=Symptoms(...)."""
    endings = summary(*traces)[Endings]
    seen = {int(name[1:]): look for name, look in looks.items()}
    ranks = {
        number: replace(ending, symptoms=seen.get(number, Symptoms()))
        for number, ending in endings.ranks.items()
    }
    found = verdicts(Endings(ranks, endings.groups))
    for verdict in found:
        assert_can_be_shown(verdict)
    return found


def assert_can_be_shown(verdict: HangVerdict) -> None:
    """It is read back from JSON as it was, with a whole sentence and few stacks."""
    assert msgspec.convert(msgspec.to_builtins(verdict), HangVerdict) == verdict
    assert not re.search(r"\bNone\b|  ", f"{verdict.sentence} {verdict.cause.text}")
    assert verdict.sentence.endswith(".")
    assert len(verdict.stacks) <= 3


def root(*traces: RankTrace, **looks: Symptoms) -> HangVerdict:
    return judged(*traces, **looks)[0]


BROKEN = [failing("all_reduce", 1000, 5, seq=4, nbytes=4 << 20)]
