"""Runs of two ranks to be judged while they grow: each has another problem, or changes on the way.

Times are in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from msgspec.structs import replace

from dsprof.trace.lines import LINES, Line
from dsprof.trace.schema import EXIT, MemorySample, Trailer
from tests.factories import trace as make

RANKS = range(2)
_MODEL, _SIZES = "bfloat16", {"bfloat16": 2, "float32": 4}

Extra = Callable[[int, float], Iterable[Line]]
"""From a step and the end of its reductions to further lines of it."""


@dataclass(frozen=True)
class Replay:
    """What the ranks do in each step; the defaults are a healthy run of ZeRO-2."""

    computes: Callable[[int], float] = lambda step: 40.0
    late: Callable[[int, int], float] = lambda rank, step: 0.0  # longer in forward than the others
    buckets: int = 1
    micro_steps: int = 1
    reduces: float = 3.0  # each bucket
    nbytes: int = 64 << 20  # of each bucket
    dtype: str = _MODEL  # of gradients on the wire
    zero: dict[str, Any] | None = field(default_factory=dict)  # written; None: no DeepSpeed
    extra: Extra = lambda step, at: ()
    memory: Callable[[int], dict[str, Any]] = lambda step: {"rss_bytes": 4 << 30}
    starts: tuple[float, ...] = (0, 0)  # share of the run by which a rank has written nothing
    trailer: Trailer | None = field(default_factory=lambda: Trailer(reason=EXIT))
    steps: int = 96

    def lines(self, rank: int) -> list[Line]:
        """Return what a rank writes."""
        found = [
            LINES["header"](args=make.header(rank, len(RANKS))),
            LINES["group"](args=make.group(len(RANKS))),
        ]
        if self.zero is not None:
            engine = make.engine(2, self.micro_steps, overlap_comm=False, **self.zero)
            engine = replace(engine, parameters=self.buckets * self.nbytes // _SIZES[_MODEL])
            found.append(LINES["engine"](args=engine))
        at = 0.0
        for step in range(self.steps):
            lines, end = self._step(rank, step, at)
            found += lines
            at = end
        return found + ([LINES["trailer"](args=self.trailer)] if self.trailer else [])

    def _step(self, rank: int, step: int, start: float) -> tuple[list[Line], float]:
        found: list[Line] = []
        at = start
        for micro in range(self.micro_steps):
            mine = self.late(rank, step)
            slowest = max(self.late(one, step) for one in RANKS)
            computes = self.computes(step) / self.micro_steps
            of = {"step": step, "micro_step": micro}
            forward = at + computes / 3 + mine
            ready = forward + computes * 2 / 3
            end = at + computes + slowest
            found.append(_phase("forward", at, forward, **of))
            for bucket in range(self.buckets):
                begin = ready if bucket == 0 else end
                end += self.reduces
                key = 1 + (step * self.micro_steps + micro) * self.buckets + bucket
                found += self._reduction(key, begin, end - begin, of)
            found.append(_phase("backward", forward, end, **of))
            at = end
        found += self.extra(step, at)
        at += 5
        found.append(_phase("step", at - 2, at, step=step))
        sample = MemorySample(at="step", time_ns=make.ns(at), step=step, **self.memory(step))
        found.append(LINES["memory"](args=sample))
        found.append(LINES["step"](args=make.step(step, start, at, self.micro_steps)))
        return found, at

    def _reduction(self, key: int, at: float, took: float, of: dict[str, int]) -> Iterable[Line]:
        elements = self.nbytes // _SIZES[self.dtype]
        given = {"nbytes": self.nbytes, "elements": elements, "dtype": self.dtype}
        given |= {"phase": "backward", **of}
        flush = 0 if self.zero is None else key
        yield make.sync(
            "all_reduce", at, took, seq=key, flush=flush, requested="all_reduce", **given
        )
        if flush:
            yield LINES["flush"](args=make.flush(flush, at, took, **given))


def _phase(name: str, start: float, end: float, **of: int) -> Line:
    return LINES["phase"](args=make.span(name, start, end, **of), name=name)


def _noise(seed: int, spread: float) -> Callable[[int, int], float]:
    return lambda rank, step: Random(1000 * seed + 2 * step + rank).uniform(0, spread)


def _scalars(step: int, at: float) -> Iterable[Line]:
    for n in range(12):
        yield make.sync(
            "all_reduce", at + 0.4 * n, 0.4, seq=10_000 + 12 * step + n, nbytes=4, step=step
        )


def _barriers(step: int, at: float) -> Iterable[Line]:
    for n in range(2):
        yield make.sync("barrier", at + 2 * n, 2, seq=10_000 + 2 * step + n, nbytes=0, step=step)


def _in_bouts(step: int) -> bool:
    """Let the mean over all steps cross a threshold again and again."""
    return step < 20 or 74 <= step < 108 or step >= 200


RUNS: dict[str, Replay] = {
    "healthy": Replay(),
    "noisy": Replay(late=_noise(1, 2)),
    "late-rank": Replay(late=lambda rank, step: 15.0 * rank),
    "late-and-once-for-long": Replay(
        late=lambda rank, step: rank * (2000.0 if step == 50 else 15.0)
    ),
    "late-rank-0": Replay(late=lambda rank, step: 8.0 * (1 - rank)),
    "late-from-the-middle": Replay(late=lambda rank, step: 30.0 * rank * (step >= 48)),
    "late-at-first": Replay(late=lambda rank, step: 15.0 * rank * (step < 32)),
    "late-in-bouts": Replay(
        computes=lambda step: 400.0,
        late=lambda rank, step: 60.0 * rank * _in_bouts(step),
        steps=292,
    ),
    "late-barely": Replay(late=lambda rank, step: rank * (2.7 + _noise(2, 6)(rank, step))),
    "late-in-turn": Replay(late=lambda rank, step: 20.0 * (step % 2 == rank)),
    "late-by-chance": Replay(late=_noise(3, 40)),
    "slower-from-the-middle": Replay(computes=lambda step: 40.0 + 20 * (step >= 48)),
    "slower-for-a-while": Replay(computes=lambda step: 40.0 + 20 * (30 <= step < 60)),
    "slower-and-slower": Replay(computes=lambda step: 40.0 + step / 4),
    "slow-every-tenth-step": Replay(computes=lambda step: 40.0 + 80 * (step % 10 == 9)),
    "slow-steps-at-first": Replay(computes=lambda step: 40.0 + 60 * (step % 6 == 5) * (step < 40)),
    "slow-now-and-then": Replay(computes=lambda step: 40.0 + 60 * (step in (17, 31, 58, 77))),
    "uneven-steps": Replay(computes=lambda step: 40.0 + _noise(4, 25)(0, step)),
    "scalars": Replay(extra=_scalars),
    "scalars-at-first": Replay(extra=lambda step, at: _scalars(step, at) if step < 24 else ()),
    "barriers": Replay(extra=_barriers),
    "barriers-from-the-middle": Replay(
        extra=lambda step, at: _barriers(step, at) if step >= 48 else ()
    ),
    "small-buckets": Replay(
        buckets=24, reduces=0.5, nbytes=64 << 10, zero={"reduce_bucket_size": 32 << 10}
    ),
    "fp32-gradients": Replay(
        dtype="float32", reduces=15, nbytes=128 << 20, zero={"communication_data_type": "fp32"}
    ),
    "every-micro-step": Replay(micro_steps=4),
    "exposed": Replay(buckets=4, reduces=25),
    "without-deepspeed": Replay(zero=None),
    "memory-grows": Replay(memory=lambda step: {"rss_bytes": (4 << 30) + step * (16 << 20)}),
    "memory-grows-at-first": Replay(
        memory=lambda step: {"rss_bytes": (4 << 30) + min(step, 40) * (16 << 20)}
    ),
    "rank-1-writes-later": Replay(starts=(0, 0.4), late=lambda rank, step: 12.0 * rank),
    "killed": Replay(trailer=None),
    "crashed": Replay(trailer=Trailer(reason=EXIT, exception="ValueError"), late=_noise(5, 3)),
    "brief": Replay(steps=14, late=lambda rank, step: 15.0 * rank),
}
