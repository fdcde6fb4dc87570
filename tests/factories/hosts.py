"""Runs over several hosts whose clocks are known: what each rank of a device would have written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from dsprof.trace.rank_trace import RankTrace
from tests.factories import device, kineto
from tests.factories.trace import MS, SECOND, enqueued, group, header, ns, rank_trace, stall, step

Clock = Callable[[float], float]
"""From true ms to the ms that a host's clock reads."""

TRANSFER_MS = 2.0


def clock(skew_ms: float = 0, drift: float = 0) -> Clock:
    """A clock that reads `skew_ms` more, and runs fast by `drift`."""
    return lambda at: at * (1 + drift) + skew_ms


def device_run(
    clocks: Sequence[tuple[str, Clock]],
    arrive: Callable[[int, int], float],
    *,
    count: int = 40,
    every: float = 100,
    bound_ms: float = 0,
    members: Sequence[int] | None = None,
    ends: Callable[[Random], float] = lambda chance: chance.uniform(0, 0.1),
) -> list[RankTrace]:
    """Ranks of devices, each on the host and with the clock given; times are in true ms.

    Collective k is entered by a rank `arrive(rank, k)` ms after `every` k, and left `TRANSFER_MS`
    after the last has come, and what `ends` says later. Devices of odd ranks are placed
    `bound_ms` too early on the clock of their host, the others where they are; all give that bound.
    Only ranks in `members` take part; all, if that is None.
    """
    world = len(clocks)
    calls = _calls(world, arrive, count, every, members or range(world), ends)
    return [
        _rank(rank, world, *clocks[rank], calls[rank], every, bound_ms) for rank in range(world)
    ]


def profiled_run(
    clocks: Sequence[tuple[str, Clock]],
    arrive: Callable[[int, int], float],
    *,
    count: int = 40,
    every: float = 100,
    first: Sequence[int] = (),
) -> list[RankTrace]:
    """The same as torch.profiler saw it; the window of a rank begins with collective `first`."""
    world = len(clocks)
    calls = _calls(world, arrive, count, every, range(world), lambda _: 0.01)
    traces = []
    for rank, (host, reads) in enumerate(clocks):
        begun = first[rank] if first else 0
        events = [
            kineto.collective(reads(start), reads(end) - reads(start))
            for start, end in calls[rank][begun:]
        ]
        traces.append(device.rank(events, rank, world, host_name=host))
    return traces


_Calls = list[list[tuple[float, float]]]


def _calls(
    world: int,
    arrive: Callable[[int, int], float],
    count: int,
    every: float,
    members: Sequence[int],
    ends: Callable[[Random], float],
) -> _Calls:
    """Return when each rank was in its collectives, in true ms."""
    chance = Random(7)
    calls: _Calls = [[] for _ in range(world)]
    for k in range(count):
        last = max(arrive(rank, k) for rank in members)
        for rank in members:
            span = arrive(rank, k), last + TRANSFER_MS + ends(chance)
            calls[rank].append((every * k + span[0], every * k + span[1]))
    return calls


def _rank(
    rank: int,
    world: int,
    host: str,
    reads: Clock,
    calls: Sequence[tuple[float, float]],
    every: float,
    bound_ms: float,
) -> RankTrace:
    comm, stalls, begin = [], [], reads(0)
    for k, call in enumerate(calls):
        early = bound_ms * (rank % 2)
        start, end = (reads(at) - begin - early for at in call)
        comm.append(enqueued("all_reduce", start - every, seq=k, step=k))
        stalls.append(stall(comm[-1], "collective", start, end, bound_ns=ns(bound_ms)))
    head = header(
        rank,
        world,
        host=host,
        boot_id=f"boot of {host}",
        device="cuda",
        backend="nccl",
        started_monotonic_ns=50 * SECOND + round(begin * MS),
    )
    steps = [step(k, every * k, every * (k + 1)) for k in range(len(calls))]
    groups = {1: group(world)}
    return rank_trace(rank, world, comm=comm, stalls=stalls, head=head, steps=steps, groups=groups)
