"""What a kernel's log says of the ranks of a run, beside what their records say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.hang.model import Cause, CauseKind, HangVerdict, Kind
from dsprof.findings.wording import some
from dsprof.trace.dumps.kernel_log import KernelMessage
from dsprof.trace.schema import Header

_PIDS_OF_HOST = (0, 0xEFFFFFFC)
"""PID namespaces whose numbers a kernel's log has: an unknown one, and the first one of Linux."""
_LISTED = 4


class _Meaning(NamedTuple):
    kind: Kind
    cause: CauseKind
    text: str
    remedy: str


_MEANINGS = {
    "device": _Meaning(
        "frozen",
        "device",
        "The GPU of rank {rank} ({address}) failed with {what}",
        "Take {host} out of the job, reset the GPU {address} or reboot the host. NVIDIA's "
        "catalog says what an Xid means.",
    ),
    "killed": _Meaning(
        "died",
        "out_of_memory",
        "The kernel killed rank {rank} (process {pid}) for memory",
        "Raise the memory limit of the job, or reduce what rank {rank} keeps in host memory.",
    ),
    "crashed": _Meaning(
        "died",
        "signal",
        "Rank {rank} (process {pid}) crashed with a {what}",
        "Look for the stack of the crash in the log of rank {rank}; PYTHONFAULTHANDLER=1 prints it "
        "at the next crash.",
    ),
    "program": _Meaning(
        "died",
        "device",
        "On the GPU of rank {rank} ({address}), {what}",
        "Find the kernel: run with CUDA_LAUNCH_BLOCKING=1, or with compute-sanitizer.",
    ),
    "blocked": _Meaning(
        "frozen",
        "file_system",
        "Rank {rank} (process {pid}) was blocked in the kernel for more than {what}",
        "Check the storage of {host}: a process that is blocked in the kernel usually waits for a "
        "file system or a disk that does not answer.",
    ),
}
"""What each kind of message means; of several about a rank the first kind here counts."""
_ORDER = [*_MEANINGS]


def with_kernel_messages(
    verdicts: Sequence[HangVerdict],
    endings: Endings,
    headers: Sequence[Header],
    told: Iterable[KernelMessage],
) -> list[HangVerdict]:
    """Return verdicts with what the kernels of the hosts say of the ranks, which is certain.

    A message belongs to the rank with its process number, unless ranks of several hosts have it.
    Of ranks that ended in order it says nothing.
    """
    if all(verdict.kind == "none" for verdict in verdicts):
        return [*verdicts]
    of_ranks: dict[int, tuple[KernelMessage, Header]] = {}
    others: list[KernelMessage] = []
    for message in _during(told, headers):
        processes = [one for one in headers if _is_of(message, one)]
        if len(processes) != 1:
            others.append(message)
            continue
        rank = processes[0].rank
        known = of_ranks.get(rank)
        if known is None or _ORDER.index(message.kind) <= _ORDER.index(known[0].kind):
            of_ranks[rank] = message, processes[0]
    found = [*verdicts]
    for rank, (message, process) in sorted(of_ranks.items(), reverse=True):
        trailer = endings.ranks[rank].trailer if rank in endings.ranks else None
        if trailer is None or trailer.exception:
            found = _with_message(found, rank, _verdict(message, process))
    return [*found, *_nobodys(others)]


def _during(told: Iterable[KernelMessage], headers: Sequence[Header]) -> Iterator[KernelMessage]:
    """Yield what was said on hosts of the run, and not before its ranks started."""
    hosts = {_short(one.host) for one in headers if not one.anonymized}
    start_ns = min((one.started_monotonic_ns for one in headers), default=0)
    for message in told:
        is_earlier = message.boot_ns is not None and message.boot_ns < start_ns
        is_elsewhere = message.host and hosts and _short(message.host) not in hosts
        if not is_earlier and not is_elsewhere:
            yield message


def _is_of(message: KernelMessage, process: Header) -> bool:
    is_here = not message.host or process.anonymized or _short(process.host) == _short(message.host)
    return is_here and process.pid == message.pid and process.pid_namespace in _PIDS_OF_HOST


def _short(host: str) -> str:
    return host.partition(".")[0].lower()


def _verdict(message: KernelMessage, process: Header) -> HangVerdict:
    meaning = _MEANINGS[message.kind]
    facts = {
        "rank": process.rank,
        "pid": process.pid,
        "host": process.host,
        "address": message.address,
        "what": message.what,
    }
    at = f", {message.when}" if message.when else ""
    text = f"{meaning.text.format(**facts)} (log of the kernel{at})."
    return HangVerdict(
        kind=meaning.kind,
        ranks=(process.rank,),
        cause=Cause(meaning.cause, text),
        remedy=meaning.remedy.format(**facts),
        confidence="high",
        sentence=text,
    )


def _with_message(
    verdicts: Sequence[HangVerdict], rank: int, told: HangVerdict
) -> list[HangVerdict]:
    """Put what the kernel says of a rank into the verdict that names it, or before the others."""
    for place, one in enumerate(verdicts):
        if rank in one.ranks and not one.is_healthy:
            is_raised = one.cause.kind == "exception"
            text = f"{one.cause.text} {told.cause.text}" if is_raised else told.cause.text
            better = msgspec.structs.replace(
                one,
                kind=told.kind if one.kind == "unknown" else one.kind,
                cause=Cause(told.cause.kind, text),
                remedy=told.remedy,
                confidence="high",
                sentence=told.sentence if one.kind == "unknown" else one.sentence,
            )
            return [*verdicts[:place], better, *verdicts[place + 1 :]]
    return [told, *(one for one in verdicts if not one.is_healthy)]


def _nobodys(told: Sequence[KernelMessage]) -> Iterator[HangVerdict]:
    """Yield what is said of processes and devices that are of no rank that is known."""
    texts = {
        f"GPU {one.address}: {one.what}" if one.address else _process(one): one.when for one in told
    }
    if not texts:
        return
    listed = [f"{text} ({when})" if when else text for text, when in texts.items()]
    yield HangVerdict(
        kind="unknown",
        sentence=f"The log of the kernel also has, of no rank that is known: "
        f"{some(listed[::-1], _LISTED)}.",
        cause=Cause("unknown", "A container numbers its processes apart, and a rank has helpers."),
        remedy="Compare these times with the end of the run. `nvidia-smi "
        "--query-gpu=index,pci.bus_id --format=csv` tells which GPU has an address.",
    )


def _process(one: KernelMessage) -> str:
    what = {
        "killed": "was killed for memory",
        "crashed": f"crashed with a {one.what}",
        "blocked": f"was blocked for more than {one.what}",
    }
    return f"process {one.pid} ({one.name}) {what[one.kind]}"
