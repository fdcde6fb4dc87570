"""How ranks failed, by the exceptions that logs hold of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsprof.analysis.rank_sets import RankSet, named_ranks, union
from dsprof.findings.wording import capitalised, sentence, shortened

RUN_FAILED = "The run failed"
"""The title of findings on runs of which a log or a rank says that they failed."""
_MOST_KINDS = 2  # of failures, in a headline
_LONGEST_MESSAGE = 160
_DEVICE_ERROR = re.compile(
    # Not of memory, of assertions in kernels, or of a build for other devices.
    r"\b(CUDA|HIP) error: .*(?:illegal|misaligned|uncorrectable|NVLink|hardware|launch failure"
    r"|unknown error)"
)
_UNCORRECTABLE = " The device has damaged memory: reset it; if it fails again, replace it."
_AFTER_DEVICE_ERROR = {
    "CUDA": (
        "Look for Xid errors of the device in dmesg",
        " If there are none, set CUDA_LAUNCH_BLOCKING=1: the traceback then names the operation.",
    ),
    "HIP": (
        "Look for errors of amdgpu in dmesg",
        " If there are none, set AMD_SERIALIZE_KERNEL=3: the traceback then names the operation.",
    ),
}


def after_device_error(raised: Mapping[str, RankSet]) -> tuple[str, str] | None:
    """Say what to do if a device failed under a rank, and what if that shows nothing."""
    found = next(filter(None, map(_DEVICE_ERROR.search, raised)), None)
    if found is None:
        return None
    fix, otherwise = _AFTER_DEVICE_ERROR[found[1]]
    return fix, _UNCORRECTABLE if found[0].endswith("uncorrectable") else otherwise


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
    said = ((named_ranks(some), shortened(what, _LONGEST_MESSAGE)) for what, some in raised.items())
    return " ".join(sentence(f"{capitalised(who)} raised {what.rstrip('.')}") for who, what in said)
