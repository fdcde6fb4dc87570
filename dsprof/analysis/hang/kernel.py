"""What a kernel's log says of the ranks of a run, beside what their records say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.hang.model import Cause, CauseKind, HangVerdict, Kind
from dsprof.findings.wording import some
from dsprof.trace.dumps.kernel_log import KernelMessage
from dsprof.trace.schema import Header

_PIDS_OF_HOST = 0xEFFFFFFC
"""The PID namespace whose numbers a kernel's log has: the first one of Linux."""
_BEFORE_NS, _AFTER_NS = 120 * 10**9, 3600 * 10**9
"""Clocks of logs are inexact, and a process that hangs may live on after its last record."""
_DRIFT = 10_000
"""The clock of a kernel's log gains or loses one part of so many."""
_UNKNOWN_NS = 1 << 62
_LISTED = 4


class _Window(NamedTuple):
    """When processes ran: `epoch_ns` and `boot_ns` are when the first one started; 0: unknown."""

    epoch_ns: int
    boot_ns: int
    lasted_ns: int

    def has(self, message: KernelMessage) -> bool | None:
        """Say whether a message is of that time; None: unknown."""
        fits = []
        if self.boot_ns and message.boot_ns is not None:
            off_ns = message.boot_ns // _DRIFT
            fits.append(self._has(self.boot_ns, message.boot_ns - off_ns, message.boot_ns + off_ns))
        if self.epoch_ns and (moments := message.between_ns(self.epoch_ns)):
            fits.append(self._has(self.epoch_ns, *moments))
        return all(fits) if fits else None

    def _has(self, start_ns: int, first_ns: int, last_ns: int) -> bool:
        end_ns = start_ns + self.lasted_ns + _AFTER_NS
        return start_ns - _BEFORE_NS <= last_ns and first_ns <= end_ns


class _Meaning(NamedTuple):
    kind: Kind
    cause: CauseKind
    sentence: str
    text: str
    remedy: str


_MEANINGS = {
    "device": _Meaning(
        "frozen",
        "device",
        "The GPU of rank {rank} failed.",
        "The GPU of rank {rank} ({address}) failed with {what}",
        "Take {host} out of the job, then reset the GPU {address} or reboot the host. NVIDIA's "
        "catalog of Xid errors explains the numbers.",
    ),
    "killed": _Meaning(
        "died",
        "out_of_memory",
        "The kernel killed rank {rank}.",
        "The kernel killed rank {rank} (process {pid}) because memory ran out",
        "Raise the memory limit of the job if it has one, or reduce what the processes on {host} "
        "keep in memory.",
    ),
    "crashed": _Meaning(
        "died",
        "signal",
        "Rank {rank} crashed.",
        "Rank {rank} (process {pid}) crashed with a {what}",
        "Look for the stack of the crash in the log of rank {rank}; PYTHONFAULTHANDLER=1 prints it "
        "at the next crash.",
    ),
    "program": _Meaning(
        "died",
        "device",
        "Rank {rank} failed on its GPU.",
        "On the GPU of rank {rank} ({address}), {what}",
        "Find the kernel: run with CUDA_LAUNCH_BLOCKING=1, or with compute-sanitizer.",
    ),
    "blocked": _Meaning(
        "frozen",
        "file_system",
        "Rank {rank} was blocked in the kernel.",
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
    """Return verdicts with what the kernels of the hosts say of the ranks.

    A message belongs to the rank with its process number, if it is of the rank's host and of the
    time in which it ran; a log that does not name its host may be of another machine. Of ranks that
    closed their record in order it says nothing; where all left their process group, only what
    ended one.
    """
    is_over = all(verdict.kind == "none" for verdict in verdicts)
    of_ranks: dict[int, tuple[KernelMessage, Header]] = {}
    others: list[KernelMessage] = []
    by_pid: defaultdict[int, list[Header]] = defaultdict(list)
    for one in headers:
        by_pid[one.pid].append(one)
    has_one_host = len({one.host for one in headers}) == 1
    for message in _of_run(told, headers, endings):
        processes = [
            one
            for one in by_pid[message.pid]
            if _is_of_host(message, one, has_one_host=has_one_host)
            and _window([one], endings).has(message)
        ]
        if is_over and message.kind not in ("killed", "crashed"):
            continue
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
    return found if is_over else [*found, *_nobodys(others, has_one_host=has_one_host)]


def _of_run(
    told: Iterable[KernelMessage], headers: Sequence[Header], endings: Endings
) -> Iterator[KernelMessage]:
    """Yield what was said on hosts of the run, neither before nor after it, as far as is known."""
    hosts = {_short(one.host) for one in headers}
    # A container has a name of its own, which no kernel knows.
    is_known = all(one.pid_namespace == _PIDS_OF_HOST and not one.anonymized for one in headers)
    window = _window(headers, endings)
    for message in told:
        is_elsewhere = message.host and is_known and _short(message.host) not in hosts
        if not is_elsewhere and window.has(message) is not False:
            yield message


def _window(headers: Sequence[Header], endings: Endings) -> _Window:
    return _Window(
        min((one.started_epoch_ns for one in headers), default=0),
        min((one.started_monotonic_ns for one in headers), default=0),
        max(
            (endings.ranks[one.rank].alive_ns for one in headers if one.rank in endings.ranks),
            default=_UNKNOWN_NS,
        ),
    )


def _is_of_host(message: KernelMessage, process: Header, *, has_one_host: bool) -> bool:
    is_named = message.host and not process.anonymized
    is_here = _short(message.host) == _short(process.host) if is_named else has_one_host
    return is_here and process.pid_namespace == _PIDS_OF_HOST


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
        confidence="medium" if message.kind == "blocked" or not message.host else "high",
        sentence=meaning.sentence.format(**facts),
    )


def _with_message(
    verdicts: Sequence[HangVerdict], rank: int, told: HangVerdict
) -> list[HangVerdict]:
    """Put what the kernel says of a rank into the verdict that names it, or before the others.

    What was blocked may have gone on: that explains only what nothing else does.
    """
    is_passing = told.cause.kind == "file_system"
    for place, one in enumerate(verdicts):
        if rank in one.ranks and not one.is_healthy:
            return [*verdicts[:place], _with_cause(one, told, is_passing), *verdicts[place + 1 :]]
    others = [one for one in verdicts if not one.is_healthy]
    return [*others, told] if is_passing else [told, *others]


def _with_cause(one: HangVerdict, told: HangVerdict, is_passing: bool) -> HangVerdict:
    both = f"{one.cause.text} {told.cause.text}".strip()
    if is_passing and one.cause.kind != "unknown":
        return msgspec.structs.replace(one, cause=Cause(one.cause.kind, both))
    return msgspec.structs.replace(
        one,
        kind=told.kind if one.kind == "unknown" else one.kind,
        cause=Cause(told.cause.kind, both if one.cause.kind == "exception" else told.cause.text),
        remedy=told.remedy,
        confidence=told.confidence,
        sentence=told.sentence if one.kind == "unknown" else one.sentence,
    )


def _nobodys(told: Sequence[KernelMessage], *, has_one_host: bool) -> Iterator[HangVerdict]:
    """Yield what is said of processes and devices that are of no rank that is known."""
    texts = {
        f"GPU {one.address}: {one.what}" if one.address else _process(one): one for one in told
    }
    if not texts:
        return
    listed = [f"{text} ({one.when})" if one.when else text for text, one in texts.items()]
    is_of_which = not has_one_host and not all(one.host for one in told)
    yield HangVerdict(
        kind="unknown",
        sentence="The log of the kernel has other messages, which belong to no known rank: "
        f"{some(listed[::-1], _LISTED)}.",
        cause=Cause(
            "unknown",
            "The run has several hosts, and a log does not name the one it is of."
            if is_of_which
            else "Processes in a container have other numbers than in the kernel's log, and a rank "
            "starts helper processes.",
        ),
        remedy="Put the name of the host into the name of the file."
        if is_of_which
        else "Compare these times with the end of the run. `nvidia-smi "
        "--query-gpu=index,pci.bus_id --format=csv` lists the addresses of GPUs.",
    )


def _process(one: KernelMessage) -> str:
    what = {
        "killed": "was killed because memory ran out",
        "crashed": f"crashed with a {one.what}",
        "blocked": f"was blocked for more than {one.what}",
    }
    return f"process {one.pid} ({one.name}) {what[one.kind]}"
