"""Trains the demo's model and times each hook of dsprof in it: the wrapper less what it wraps.

Run by benchmarks/overhead.py. Comparing runs with and without dsprof finds a difference of two
large numbers, whose noise is as large as what is looked for; this looks at the hooks themselves.
Kernels in the dispatcher and what hooks cost the code around them (caches) are not in it. What the
clock costs is measured with wrappers that wrap nothing, and taken off. It is the CPU's clock of the
thread: a hook that has issued a collective has woken gloo's threads, which take the core from it.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deepspeed
import torch.distributed as dist

from benchmarks.overhead_training import SCALES, TRAININGS, dsprof_on, writer_cpu_ns
from dsprof.hooks import patching
from tests.dist.leaving import leave_group

WARM_STEPS, STEPS = 6, 40
KEPT = 0.97  # of the calls, the fastest: in the others the kernel or the collector was at work
clock = time.thread_time_ns
wall_clock = time.perf_counter_ns


class Stopwatch:
    """Times wrappers; `inside_ns` is what calls within the running one took of what they wrap."""

    def __init__(self) -> None:
        self.is_on = False
        self.inside_ns = 0
        self.spent_ns: dict[str, list[int]] = defaultdict(list)

    def around(self, name: str, wrap: Callable[..., Any]) -> Callable[..., Any]:
        """Return what does as `wrap` does, and times what its wrapper takes for itself."""

        def timed_wrap(original: Any) -> Any:
            if not callable(original):
                return wrap(original)
            wrapper = wrap(self._inner(original))
            return self._outer(name, wrapper) if callable(wrapper) else wrap(original)

        return timed_wrap

    def _inner(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return original(*args, **kwargs)
            finally:
                self.inside_ns += clock() - start

        vars(inner).update(getattr(original, "__dict__", {}))
        return inner

    def _outer(self, name: str, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        spent = self.spent_ns[name]

        def outer(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on:
                return wrapper(*args, **kwargs)
            others, self.inside_ns = self.inside_ns, 0
            start = clock()
            try:
                return wrapper(*args, **kwargs)
            finally:
                spent.append(clock() - start - self.inside_ns)
                self.inside_ns = others

        # By this name C++ knows a call that comes from an override of its method.
        code = outer.__code__.replace(co_name=name.rpartition(".")[2])
        outer.__code__ = code
        return outer

    def per_step(self) -> dict[str, dict[str, float]]:
        """Return calls and microseconds of each wrapper in a step."""
        found = {}
        for name, spent in self.spent_ns.items():
            if spent:
                kept = sorted(spent)[: max(int(len(spent) * KEPT), 1)]
                calls = len(spent) / STEPS
                found[name] = {"calls": calls, "us": calls * sum(kept) / len(kept) / 1e3}
        return found


@contextmanager
def watched(watch: Stopwatch, with_hooks: bool) -> Iterator[None]:
    """Record with dsprof, each wrapper timed; without hooks the wrappers only pass on."""
    plain = patching.Patch.__init__

    def init(patch: Any, owner: Any, name: str, wrap: Callable[..., Any]) -> None:
        own = wrap if with_hooks else lambda original: original
        plain(patch, owner, name, watch.around(f"{owner.__name__}.{name}", own))

    patching.Patch.__init__ = init  # type: ignore[assignment, method-assign]
    try:
        with dsprof_on():
            yield
    finally:
        patching.Patch.__init__ = plain  # type: ignore[method-assign]


def measure(step: Callable[[], None], with_hooks: bool) -> dict[str, Any]:
    """Return what a step took: wall, the writer's CPU time, and each hook."""
    watch = Stopwatch()
    with watched(watch, with_hooks):
        for _ in range(WARM_STEPS):
            step()
        watch.is_on = True
        start, writer = wall_clock(), writer_cpu_ns()
        for _ in range(STEPS):
            step()
        wall_ns, writer_ns = wall_clock() - start, writer_cpu_ns() - writer
        watch.is_on = False
    figures = {"wall_ms": wall_ns / STEPS / 1e6, "writer_ms": writer_ns / STEPS / 1e6}
    return {**figures, "hooks": watch.per_step()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("training", choices=TRAININGS)
    parser.add_argument("scale", choices=SCALES)
    args = parser.parse_args()
    deepspeed.init_distributed(dist_backend="gloo")
    step, end = TRAININGS[args.training](SCALES[args.scale])
    # The clocks first: hooks change where some libraries go for good.
    result = {"clocks": measure(step, with_hooks=False), "dsprof": measure(step, with_hooks=True)}
    end()
    if dist.get_rank() == 0:
        args.out.write_text(json.dumps(result))
    leave_group()


if __name__ == "__main__":
    main()
