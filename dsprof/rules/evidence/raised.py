"""How ranks failed, by the exceptions that logs hold of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from dsprof.analysis.rank_sets import RankSet, named_ranks, union
from dsprof.files.tables import rows
from dsprof.findings.wording import capitalised, sentence, shortened
from dsprof.trace.collectives import family

RUN_FAILED = "The run failed"
"""The title of findings on runs of which a log or a rank says that they failed."""
_MOST_KINDS = 2  # of failures, in a headline
_LONGEST_MESSAGE = 160
_MISMATCH = "Detected mismatch between collectives on ranks"
_FINGERPRINT = re.compile(
    r"is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+),? ?OpType=([A-Z_]+)"
    r"(?:, TensorShape=(\[[\d, ]*\]).*?\)\)\)|\))"
)


def remedy(raised: Mapping[str, RankSet]) -> tuple[str, str] | None:
    """Say what to do after an exception whose cause is known, and what besides."""
    for pattern, fix, more in _remedies():
        if any(map(pattern.search, raised)):
            return fix, more and f" {more}"
    return None


@cache
def _remedies() -> tuple[tuple[re.Pattern[str], str, str], ...]:
    table = rows("rules/knowledge/exceptions.csv")
    return tuple((re.compile(row["pattern"]), row["fix"], row["more"]) for row in table)


def who_failed(ways: Mapping[str, RankSet], raised: Mapping[str, RankSet]) -> str:
    """Name ranks, each with the exception that ended it or else the way in which it failed."""
    by_type: dict[str, RankSet] = {}
    for what, ranks in raised.items():
        kind = what.partition(":")[0].rpartition(".")[2]
        by_type[kind] = by_type.get(kind, 0) | ranks
    left = {way: ranks & ~union(raised.values()) for way, ranks in ways.items()}
    kinds = {**{way: ranks for way, ranks in left.items() if ranks}, **by_type}
    told = ", ".join(f"{named_ranks(ranks)} ({kind})" for kind, ranks in kinds.items())
    return capitalised(told if len(kinds) <= _MOST_KINDS else named_ranks(union(kinds.values())))


def messages(raised: Mapping[str, RankSet]) -> str:
    """Quote what ranks raised, "" if that is too much for a sentence."""
    if len(raised) > _MOST_KINDS:
        return ""
    said = (
        (named_ranks(some) if some else "a process", _shortened(what))
        for what, some in raised.items()
    )
    return " ".join(sentence(f"{capitalised(who)} raised {what.rstrip('.')}") for who, what in said)


def _shortened(what: str) -> str:
    """Keep the calls and their shapes of what torch prints of collectives that differ."""
    if _FINGERPRINT.search(what):
        both = what.replace(f"{_MISMATCH}. ", "").partition("Collectives differ in")[0]
        what = _FINGERPRINT.sub(_call, both)
    return shortened(what, _LONGEST_MESSAGE)


def _call(found: re.Match[str]) -> str:
    shape = f" {found[3]}" if found[3] else ""
    return f"calls {family(found[2].lower())}{shape} (number {found[1]})"
