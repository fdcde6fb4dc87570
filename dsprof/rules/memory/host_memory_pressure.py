"""host-memory-pressure: a host, or its /dev/shm, has almost no memory left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.memory import Memory, RankMemory
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import plural, size
from dsprof.rules.rule import Rule, RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When little is left."""

    available_share: float = 0.05  # of the host's memory, at its minimum
    shm_free_share: float = 0.05  # of /dev/shm, at its minimum
    enough_bytes: int = 8 << 30  # of either: so much is little only for ranks that hold more


class _Host(NamedTuple):
    name: str
    ranks: tuple[int, ...]
    total_bytes: int
    left_bytes: int
    held_bytes: int  # by the processes of the ranks, at their peaks
    largest_bytes: int  # of one of them


class HostMemoryPressure(Rule):
    """Reads what the host had left at its minimum, as its ranks saw it."""

    meta = RuleMeta(
        id="host-memory-pressure",
        title="Hosts have free memory",
        failing_title="A host has almost no free memory",
        why="A host that runs out of memory kills a rank without a message, and all others "
        "hang. Before that it swaps. A full /dev/shm breaks data loaders and transports.",
        category="memory",
        order=470,
        needs=(Memory, Run, Engines),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge memory and /dev/shm of each host."""
        hosts = _hosts(run, lambda m: (m.host_total_bytes, m.least_host_available_bytes))
        shared = _hosts(run, lambda m: (m.shm_total_bytes, m.least_shm_free_bytes))
        if not hosts and not shared:
            yield self.meta.unknown("Unknown: no memory of a host was recorded.")
            return
        enough, share = thresholds.enough_bytes, thresholds.available_share
        # A large host has room for the run where another process as large as a rank would fit.
        if full := [
            h for h in hosts if _is_full(h, share, max(enough, h.largest_bytes or h.total_bytes))
        ]:
            yield self._full(full, run[Engines])
        if crowded := [h for h in shared if _is_full(h, thresholds.shm_free_share, enough)]:
            yield self._crowded(crowded)

    def _full(self, hosts: list[_Host], engines: Engines) -> Finding:
        worst = min(hosts, key=lambda host: host.left_bytes / host.total_bytes)
        offloads = _offloads(engines)
        return self.meta.finding(
            Status.FAIL,
            f"{worst.name} had {size(worst.left_bytes)} of {size(worst.total_bytes)} free at the "
            f"minimum; its {plural(len(worst.ranks), 'rank')} held up to {size(worst.held_bytes)}.",
            severity=Severity.HIGH,
            cause=f"Offloading keeps state in host memory: {' and '.join(offloads)}."
            if offloads
            else "The ranks' processes, their data loader workers, or other programs use it.",
            fix="Offload less" if offloads else "Use fewer data-loader workers",
            action=f"Offload less{', or to NVMe' if engines.stage == 3 else ''}; spread the ranks "
            "over more hosts."
            if offloads
            else "Use fewer workers and a smaller prefetch_factor for data loaders, load "
            "checkpoints on one rank of a host at a time, and check which other processes hold "
            "memory there.",
            ranks=_ranks(hosts),
            evidence=(_table(hosts, "Host memory at its minimum"),),
            confidence="high",
        )

    def _crowded(self, hosts: list[_Host]) -> Finding:
        worst = min(hosts, key=lambda host: host.left_bytes / host.total_bytes)
        return self.meta.finding(
            Status.FAIL,
            f"/dev/shm of {worst.name} had {size(worst.left_bytes)} of {size(worst.total_bytes)} "
            "free at the minimum.",
            title="/dev/shm is almost full",
            severity=Severity.MEDIUM,
            cause=(
                "Data loader workers pass batches through it; NCCL, gloo and DeepSpeed communicate "
                "through it within a host."
            ),
            action=(
                "Enlarge it in containers (docker --shm-size=8g, or --ipc=host), delete files that "
                "earlier runs left there, and use fewer workers or a smaller prefetch_factor."
            ),
            ranks=_ranks(hosts),
            evidence=(_table(hosts, "/dev/shm at its minimum"),),
            confidence="high",
        )


def _hosts(
    run: RunSummary, read: Callable[[RankMemory], tuple[int | None, int | None]]
) -> list[_Host]:
    """Return total and least of each host, over the ranks that could read them."""
    found: dict[str, list[tuple[int, RankMemory]]] = {}
    for rank, memory in sorted(run[Memory].ranks.items()):
        total, left = read(memory)
        if total and left is not None and rank in run[Run].hosts:
            found.setdefault(run[Run].hosts[rank], []).append((rank, memory))
    return [
        _Host(
            name,
            tuple(rank for rank, _ in members),
            max(read(memory)[0] or 0 for _, memory in members),
            min(read(memory)[1] or 0 for _, memory in members),
            sum(memory.peak_rss_bytes or 0 for _, memory in members),
            max(memory.peak_rss_bytes or 0 for _, memory in members),
        )
        for name, members in found.items()
    ]


def _is_full(host: _Host, share: float, enough_bytes: int) -> bool:
    return host.left_bytes < min(share * host.total_bytes, enough_bytes)


def _offloads(engines: Engines) -> list[str]:
    """Return the sections that keep state in the memory of the host: only stage 3 has NVMe."""
    sections = {key: engines.zero(key) for key in ("offload_optimizer", "offload_param")}
    devices = ("cpu",) if engines.stage == 3 else ("cpu", "nvme")
    return [k for k, v in sections.items() if isinstance(v, dict) and v.get("device") in devices]


def _ranks(hosts: list[_Host]) -> tuple[int, ...]:
    return tuple(sorted(rank for host in hosts for rank in host.ranks))


def _table(hosts: list[_Host], caption: str) -> Table:
    return Table(
        columns=(
            Column("host"),
            Column("ranks", "count"),
            Column("total", "bytes"),
            Column("least free", "bytes"),
            Column("held by the ranks", "bytes"),
        ),
        rows=tuple(
            (host.name, len(host.ranks), host.total_bytes, host.left_bytes, host.held_bytes)
            for host in hosts[:32]
        ),
        caption=caption,
    )
