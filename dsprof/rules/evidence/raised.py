"""How ranks failed, by the exceptions that logs hold of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsprof.analysis.rank_sets import RankSet, named_ranks, union
from dsprof.findings.wording import capitalised, sentence, shortened
from dsprof.trace.collectives import family

RUN_FAILED = "The run failed"
"""The title of findings on runs of which a log or a rank says that they failed."""
_MOST_KINDS = 2  # of failures, in a headline
_LONGEST_MESSAGE = 160
_DEVICE = "(?:illegal|misaligned|NVLink|hardware|launch failure|unknown error)"
"""In errors of a device, but not of memory, of assertions in kernels, or of a build for others."""
_MISMATCH = "Detected mismatch between collectives on ranks"
_XID = "Look for Xid errors of the device in dmesg"
_REMEDIES = (
    (
        re.compile("CUDA error: .*uncorrectable"),
        _XID,
        " The device has damaged memory: reset it; if it fails again, replace it.",
    ),
    (
        re.compile(f"CUDA error: .*{_DEVICE}"),
        _XID,
        " If there are none, set CUDA_LAUNCH_BLOCKING=1: the traceback then names the operation.",
    ),
    (
        re.compile(f"HIP error: .*(?:uncorrectable|{_DEVICE})"),
        "Look for errors of amdgpu in dmesg",
        " If there are none, set AMD_SERIALIZE_KERNEL=3: the traceback then names the operation.",
    ),
    (
        re.compile("DataLoader worker .* by signal: Bus error"),
        "Start the container with a larger --shm-size",
        " Or lower num_workers of the data loader: its workers pass batches through /dev/shm.",
    ),
    (
        re.compile("DataLoader worker .* by signal: Killed"),
        "Check the memory of its host: `dmesg`",
        " Or lower num_workers of the data loader: each worker takes memory of the host.",
    ),
    (
        re.compile("No space left on device.*/dev/shm"),
        "Start the container with a larger --shm-size",
        "",
    ),
    (
        re.compile(
            r"No space left on device|Disk quota exceeded|StreamWriter failed writing file"
            r"|inline_container\.cc:\d+\] \. unexpected pos"
        ),
        "Check free space and quota of the disk that the run writes to",
        " Keep fewer checkpoints.",
    ),
    (
        re.compile("system not yet initialized"),
        "Start nvidia-fabricmanager on its host, in the version of its driver",
        "",
    ),
    (
        re.compile(f"{_MISMATCH}|disagreement between rank0 and rank"),
        "Find out why these ranks call different collectives",
        " Usual causes are a branch that only some ranks take, and a shape that depends on data.",
    ),
    (
        re.compile("Expected to have finished reduction in the prior iteration"),
        "Pass find_unused_parameters=True to DistributedDataParallel",
        " Or use every parameter in the loss.",
    ),
)
_FINGERPRINT = re.compile(
    r"is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+),? ?OpType=([A-Z_]+)"
    r"(?:, TensorShape=(\[[\d, ]*\]).*?\)\)\)|\))"
)


def remedy(raised: Mapping[str, RankSet]) -> tuple[str, str] | None:
    """Say what to do after an exception whose cause is known, and what besides."""
    known = ((fix, more) for pattern, fix, more in _REMEDIES if any(map(pattern.search, raised)))
    return next(known, None)


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
