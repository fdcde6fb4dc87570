"""device-out-of-memory: why a request for device memory failed, by the allocator's own figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.aggregates.memory import Memory
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Confidence, Finding, Severity, Status, Table
from dsprof.findings.wording import capitalised, named, named_if_known, percent, plural, size, some
from dsprof.rules.causes import KEPT
from dsprof.rules.evidence.allocator import (
    EXPAND,
    EXPANDABLE,
    SPLIT_LESS,
    against_fragments,
    expandable_ranks,
    is_expandable,
)
from dsprof.rules.memory.memory_growth import device_growth
from dsprof.rules.reasons import NO_LOG
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.device_counters import DEVICE_TOTAL, RESERVED, STUCK
from dsprof.trace.rank_log import OutOfMemory

_ADD_THE_LOG = (
    "Add the log to the report (dsprof report dsprof-out train.log): torch's message in it states "
    "the request, the limit and the memory of other processes."
)
_LESS_FRAGMENTS = (
    "Pad tensors to a few fixed lengths; delete CUDA graphs that you no longer need: each keeps a "
    "private pool"
)
_USE_LESS = (
    "Use a smaller micro-batch or shorter sequences; checkpoint activations, shard more (a higher "
    "ZeRO stage, more ranks), or offload the optimizer"
)
_STOP_GROWTH = (
    "Keep no tensors from step to step; memory-growth says how to find them. Smaller batches would "
    "only fail later"
)

_LEAK_SHARE = 0.1
"""Growth during the run by less of the device may have filled it, but a longer batch, too."""
_NAMED = 2
_ROUNDED_BYTES = 3 * (1 << 30) // 100
"""torch prints hundredths of a GiB: what is left of three such sizes may be none."""


class _Kind(NamedTuple):
    """What belongs to a kind of device."""

    module: str = "torch.cuda"
    tool: str = "nvidia-smi"
    expand: str = f"{EXPAND} on every rank (PyTorch 2.1 or later; max_split_size_mb:128 before)"

    @property
    def own_device(self) -> str:
        """What each rank does so that it takes a device of its own."""
        return f"call {self.module}.set_device with LOCAL_RANK before anything else"


_KINDS = {
    "HIP": _Kind(
        tool="rocm-smi --showpids",
        expand=f"{SPLIT_LESS} on every rank (most builds for ROCm ignore expandable_segments)",
    ),
    "NPU": _Kind(
        "torch.npu",
        "npu-smi info",
        f"PYTORCH_NPU_ALLOC_CONF={EXPANDABLE} on every rank (Ascend HDK 23.0 or later)",
    ),
    "XPU": _Kind(
        "torch.xpu",
        "xpu-smi ps",
        f"PYTORCH_ALLOC_CONF={EXPANDABLE} on every rank (PyTorch 2.10 or later)",
    ),
}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When memory of other processes, fragments and room count."""

    others_share: float = 0.05  # of the device's memory
    outside_share: float = 0.5  # the same, where the process itself may hold some of it
    free_bytes: int = 1 << 30  # on the device, and twice the request: it was not full
    stuck_share: float = 0.15  # of what a rank had reserved at the end of its last step
    room_share: float = 0.3  # of the device's memory, not reserved then


class _Failure(NamedTuple):
    """A failed request, and the sums that decide why; None where torch did not say."""

    rank: int  # -1: unknown
    text: OutOfMemory
    others_bytes: int  # held by other processes, or outside torch's allocator

    @property
    def who(self) -> str:
        """The rank, as part of a sentence."""
        return named_if_known(_ranks([self]))

    @property
    def device(self) -> _Kind:
        """What belongs to its kind of device."""
        return _KINDS.get(self.text.kind, _Kind())

    @property
    def is_outside(self) -> bool:
        """Whether torch says only what its allocator holds, as up to 2.0."""
        return self.text.process_bytes < 0 and not self.text.others

    @property
    def available_bytes(self) -> int | None:
        """Free on the device and unallocated in torch's pools, together."""
        free, unallocated = self.text.free_bytes, self.text.unallocated_bytes
        return None if free < 0 or unallocated < 0 else free + unallocated

    @property
    def fits_in_pieces(self) -> bool:
        """Whether what was unallocated, and free where torch says so, covers the request."""
        known = max(0, self.text.free_bytes) + max(0, self.text.unallocated_bytes)
        return known >= self.text.asked_bytes

    @property
    def is_limited(self) -> bool:
        """Whether the request passes what the process may reserve."""
        reserved = self.text.allocated_bytes + max(0, self.text.unallocated_bytes)
        allowed = self.text.allowed_bytes
        below = 0 <= allowed < self.text.capacity_bytes
        return below and reserved + self.text.asked_bytes > allowed

    def arithmetic(self, failures: Iterable[_Failure]) -> str:
        """State who failed, what this one requested and the available memory."""
        text = self.text
        parts = [
            ("free on the device", text.free_bytes),
            ("reserved but unallocated", text.unallocated_bytes),
        ]
        known = [f"{size(nbytes)} {name}" for name, nbytes in parts if nbytes >= 0]
        unknown = "".join(f"; {name}: not stated" for name, nbytes in parts if nbytes < 0)
        total = self.available_bytes
        equals = "" if total is None else f" = {size(total)}"
        sums = " + ".join(known) or "free memory unknown"
        ranks = _ranks(failures)
        who = "it" if len(ranks) < 2 else self.who
        asked = f"{who} asked for {size(text.asked_bytes)}"
        failed = f"{capitalised(named_if_known(ranks))} ran out of device memory: {asked}"
        return f"{failed}, available: {sums}{equals}{unknown}{self._held()}."

    def _held(self) -> str:
        """Say what is held by others; torch 2.1 and later list them."""
        if not self.others_bytes:
            return ""
        unlisted = "outside torch's allocator" if self.is_outside else "outside this process"
        who = "by other processes" if self.text.others else unlisted
        return f"; {size(self.others_bytes)} used {who}"


class DeviceOutOfMemory(Rule):
    """Tells fragments, other processes and sheer need apart.

    Memory that torch reserved and does not use would have served the request, had it been in one
    piece: only then can fragments be the cause. torch's own text suggests it every time.
    """

    meta = RuleMeta(
        id="device-out-of-memory",
        title="No device memory request failed",
        failing_title="A device ran out of memory",
        why="torch gives the same advice for every failure. Which setting helps depends on what "
        "holds the memory: fragments, another process, or the model.",
        category="memory",
        order=30,
        needs=(EnvironmentFacts, Logs, Memory, Run),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Report each cause by itself, with the ranks that it stopped."""
        logs = run[Logs]
        failures = [_Failure(rank, text, _others(text)) for rank, text in logs.failed_requests()]
        told = _ranks(failures)
        untold = [rank for rank in run[Run].out_of_memory_ranks if rank not in told]
        is_of_any = any(failure.rank < 0 for failure in failures)  # those of `untold`, too
        if untold and not is_of_any:
            yield self._ended(run, untold, thresholds)
        elif not logs.ranks:
            yield self.meta.not_applicable(NO_LOG)
            return
        limited = [f for f in failures if f.is_limited]
        crowded = [f for f in failures if f not in limited and _is_crowded(f, thresholds)]
        rest = [f for f in failures if f not in limited and f not in crowded]
        refused = [f for f in rest if _is_refused(f, thresholds)]
        rest = [f for f in rest if f not in refused]
        fragmented = [f for f in rest if f.fits_in_pieces]
        needy = [f for f in rest if f not in fragmented]
        found = [
            *([self._limited(limited)] if limited else []),
            *([self._crowded(crowded)] if crowded else []),
            *([self._refused(refused)] if refused else []),
            *([self._fragmented(run, fragmented)] if fragmented else []),
            *([self._needy(run, needy)] if needy else []),
        ]
        if len(found) == 1 and is_of_any:
            ranks = tuple(sorted({*found[0].ranks, *untold}))
            found = [msgspec.structs.replace(found[0], ranks=ranks)]
        yield from found

    def _ended(self, run: RunSummary, ranks: list[int], thresholds: Thresholds) -> Finding:
        """Judge ranks by their traces, which do not say what was asked for."""
        ended = f"{capitalised(named(ranks))} ran out of device memory"
        counted = {rank: m.device_last for rank in ranks if (m := run[Memory].ranks.get(rank))}
        known = {rank: one for rank, one in counted.items() if one.get(DEVICE_TOTAL)}
        if not known:
            return self.meta.finding(
                Status.FAIL,
                f"{ended}. The traces have no figures of their memory.",
                severity=Severity.CRITICAL,
                cause="Unknown: neither torch's message nor the allocator's counters are known.",
                action=_ADD_THE_LOG,
                ranks=tuple(ranks),
                confidence="low",
            )
        worst = max(known, key=lambda rank: known[rank].get(RESERVED, 0))
        reserved, total = known[worst].get(RESERVED, 0), known[worst][DEVICE_TOTAL]
        stuck = known[worst].get(STUCK, 0)
        fragments = (
            f"; {size(stuck)} of the reserved memory was stuck in fragments" if stuck else ""
        )
        if reserved < (1 - thresholds.room_share) * total:
            cause = (
                f"{percent(1 - reserved / total)} of the device was not reserved at that time: the "
                "process has a limit, another process holds the rest, or a single request was very "
                "large."
            )
            action = "Read torch's message in the log"
        elif growth := device_growth(run[Memory].ranks[worst], _LEAK_SHARE * total):
            cause, action = _grown(worst, growth), _STOP_GROWTH
        elif stuck >= thresholds.stuck_share * reserved:
            is_set = _is_expandable(run, [worst])
            although = ", although expandable_segments is on" if is_set else ""
            cause = (
                f"Probably fragmentation{although}: {percent(stuck / reserved)} of the reserved "
                "memory was free, but in pieces that are too small for large requests."
            )
            setting = against_fragments(run[EnvironmentFacts])
            action = _LESS_FRAGMENTS if is_set else f"Set {setting} on every rank"
        else:
            cause = (
                "The process had reserved most of the device: the model probably needs more memory "
                "than the device has."
            )
            action = _USE_LESS
        return self.meta.finding(
            Status.FAIL,
            f"{ended}. At the end of its last step rank {worst} had reserved {size(reserved)} of "
            f"the device's {size(total)}{fragments}.",
            severity=Severity.CRITICAL,
            cause=cause,
            problem=ended,
            fix=action.partition(";")[0],
            action=f"{action}. {_ADD_THE_LOG}",
            ranks=tuple(ranks),
            restates=KEPT if action is _STOP_GROWTH else "",
            confidence="low",
        )

    def _limited(self, failures: list[_Failure]) -> Finding:
        text = failures[0].text
        is_free = text.free_bytes >= text.asked_bytes
        return self._finding(
            failures,
            "A process reached its device memory limit",
            f"{failures[0].arithmetic(failures)} The process may reserve "
            f"{size(text.allowed_bytes)} of {size(text.capacity_bytes)}.",
            f"{failures[0].device.module}.set_per_process_memory_fraction, or the allocator's "
            "setting of that name, limits the process.",
            "Raise the limit if no other process uses the device.",
            "high" if is_free else "medium",
        )

    def _refused(self, failures: list[_Failure]) -> Finding:
        return self._finding(
            failures,
            "A memory request failed although the device had free memory",
            failures[0].arithmetic(failures),
            "The device had room for the request when torch looked, just after the failure: "
            "another process freed memory by then, or a limit that torch does not know refused it.",
            "Look for another rank or job that ended then on this device; else for a limit: of "
            "MPS, of a virtual machine, of the page file of Windows.",
            "low",
        )

    def _crowded(self, failures: list[_Failure]) -> Finding:
        worst = max(failures, key=lambda failure: failure.others_bytes)
        text = worst.text
        pids = [pid for pid, _ in text.others]
        process = "process" if len(pids) == 1 else "processes"
        is_outside = worst.is_outside
        unlisted = "that memory" if is_outside else "the other processes"
        who = f"{process} {some(list(map(str, pids)), 4)}" if pids else unlisted
        of_whom = "outside torch's allocator" if is_outside else "of other processes"
        few = capitalised(who) if pids else f"Memory {of_whom}"
        subject = few if len(pids) <= _NAMED else plural(len(pids), "process", "processes")
        verb = "take" if len(pids) > 1 else "takes"
        of = f"{size(worst.others_bytes)} of {size(text.capacity_bytes)}"
        cause = f"Without {who} the request would have succeeded"
        either = worst.fits_in_pieces and text.free_bytes < text.asked_bytes
        sharing = _ranks(one for one in failures if one is worst or _share_device(one, worst))
        is_shared = len(sharing) > 1
        each = f"each lists the other{'s' if len(sharing) > 2 else ''}"
        shared = f"{capitalised(named(sharing))} use the same device: {each}. "
        return self._finding(
            failures,
            "Memory of the device is held outside torch's allocator"
            if is_outside
            else "Another process holds memory of the same device",
            f"{shared * is_shared}{subject} {verb} {of} on {worst.who}'s device. "
            f"{worst.arithmetic(failures)}",
            f"{cause}. It would also fit if the unallocated memory were contiguous."
            if either
            else f"{cause}: fragmentation and the model's size are not the cause.",
            f"{capitalised(worst.device.own_device)}."
            if is_shared
            else f"Find it with {worst.device.tool} on that host: a leftover of an earlier run, "
            "another job, or another rank of this one that took the wrong device "
            f"({worst.device.own_device})."
            + " If no other process has it, a library of this one does, such as JAX."
            * is_outside,
            "high" if pids and not either else "medium",
        )

    def _fragmented(self, run: RunSummary, failures: list[_Failure]) -> Finding:
        worst = max(failures, key=lambda failure: failure.text.unallocated_bytes)
        action = (
            f"expandable_segments is already on. {_LESS_FRAGMENTS}."
            if _is_expandable(run, _ranks(failures) or run[Run].ranks)
            else f"Set {worst.device.expand}. If the request still fails, the model needs more "
            "memory than the device has."
        )
        in_pool = worst.text.unallocated_bytes >= worst.text.asked_bytes
        return self._finding(
            failures,
            "A memory request failed although enough memory was unused",
            worst.arithmetic(failures),
            "torch's reserved, unused memory is large enough for the request, but not contiguous."
            if in_pool
            else "Free and unallocated memory cover the request only together: fragmentation, or a "
            "device that is too small.",
            action,
            "medium" if in_pool else "low",
        )

    def _needy(self, run: RunSummary, failures: list[_Failure]) -> Finding:
        worst = min(failures, key=lambda failure: failure.available_bytes or 0)
        text = worst.text
        in_use = f"{size(text.allocated_bytes)} of {size(text.capacity_bytes)} in use"
        is_known = all(failure.available_bytes is not None for failure in failures)
        memory = run[Memory].ranks.get(worst.rank)
        growth = device_growth(memory, _LEAK_SHARE * text.capacity_bytes) if memory else None
        cause = (
            "Free and unallocated memory together are too small for the request, even in one "
            "piece: expandable_segments, which torch always suggests, would not help."
            if is_known
            else "The unused memory that torch states is too small for the request, even in one "
            "piece."
        )
        finding = self._finding(
            failures,
            "The run needs more memory than the device has",
            f"{worst.arithmetic(failures)} torch has {in_use}.",
            f"{_grown(worst.rank, growth)} {cause}" if growth else cause,
            f"{_STOP_GROWTH if growth else _USE_LESS}.",
            "high" if is_known else "medium",
        )
        return msgspec.structs.replace(finding, restates=KEPT) if growth else finding

    def _finding(
        self,
        failures: list[_Failure],
        title: str,
        summary: str,
        cause: str,
        action: str,
        confidence: Confidence,
    ) -> Finding:
        return self.meta.finding(
            Status.FAIL,
            summary,
            title=title,
            severity=Severity.CRITICAL,
            cause=cause,
            action=action,
            ranks=_ranks(failures),
            evidence=(_table(failures),),
            confidence=confidence,
        )


def _grown(rank: int, growth: float) -> str:
    return (
        f"Memory in use on rank {rank} grew by {size(growth)} with each step: tensors that are "
        "kept from step to step filled the device."
    )


def _ranks(failures: Iterable[_Failure]) -> tuple[int, ...]:
    return tuple(sorted({failure.rank for failure in failures if failure.rank >= 0}))


def _is_expandable(run: RunSummary, ranks: Iterable[int]) -> bool:
    """Say whether segments grow already on `ranks`; what one log says of it counts for all."""
    in_traces = expandable_ranks(run[EnvironmentFacts])
    by_logs = any(is_expandable(log.allocator_settings) for log in run[Logs].ranks.values())
    return by_logs or all(in_traces >> rank & 1 for rank in ranks)


def _others(text: OutOfMemory) -> int:
    """Return what other processes hold: as torch lists them, else what is unaccounted for.

    Up to torch 2.0 the text does not say how much the process holds beside torch's own memory:
    that is among the unaccounted.
    """
    if listed := sum(nbytes for _, nbytes in text.others):
        return listed
    own = text.process_bytes
    if own < 0:
        if text.free_bytes < 0 or text.unallocated_bytes < 0:
            return 0
        own = text.allocated_bytes + text.unallocated_bytes
    rest = text.capacity_bytes - max(0, text.free_bytes) - own
    return rest if rest > _ROUNDED_BYTES else 0


def _share_device(one: _Failure, other: _Failure) -> bool:
    """Say whether two ranks list the same processes, but for each other.

    Numbers of devices may be of those that a rank can see.
    """
    mine, theirs = ({pid for pid, _ in failure.text.others} for failure in (one, other))
    differ = (len(mine - theirs), len(theirs - mine))
    return one.text.device == other.text.device and differ == (1, 1) and bool(mine & theirs)


def _is_refused(failure: _Failure, thresholds: Thresholds) -> bool:
    text = failure.text
    return text.free_bytes >= max(thresholds.free_bytes, 2 * text.asked_bytes)


def _is_crowded(failure: _Failure, thresholds: Thresholds) -> bool:
    text, others = failure.text, failure.others_bytes
    share = thresholds.outside_share if failure.is_outside else thresholds.others_share
    if others < share * text.capacity_bytes:
        return False
    return others + max(0, text.free_bytes) >= text.asked_bytes


def _table(failures: list[_Failure]) -> Table:
    return Table(
        columns=(
            Column("rank"),
            Column("device"),
            Column("asked for", "bytes"),
            Column("capacity", "bytes"),
            Column("free", "bytes"),
            Column("in use by torch", "bytes"),
            Column("reserved, unused", "bytes"),
            Column("used by other processes", "bytes"),
        ),
        rows=tuple(_rows(failures[:32])),
        caption="As reported by torch's allocator",
    )


def _rows(failures: list[_Failure]) -> Iterator[tuple[int | None, ...]]:
    for rank, text, others in failures:
        yield (
            rank if rank >= 0 else None,
            text.device if text.device >= 0 else None,
            text.asked_bytes,
            text.capacity_bytes,
            text.free_bytes if text.free_bytes >= 0 else None,
            text.allocated_bytes,
            text.unallocated_bytes if text.unallocated_bytes >= 0 else None,
            others if text.process_bytes >= 0 or text.others else None,
        )
