"""The wire table of one run: what torch counted of each row without dsprof, and what dsprof saw."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from tests.dist.launch import PROGRAMS
from tests.dist.traces import operations

PROGRAM = PROGRAMS / "wire_table.py"
BARE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # torch imports what offers itself
RANKS = {"ROWS": 2, "COMPILED": 2, "MESH": 4}

ISSUED_BY_CPP = {
    "compiled_ddp",
    "compiled_with_aot_eager",
    "compiled_with_inductor",
    "ddp",
    "ddp_gradient_as_bucket_view",
    "ddp_no_sync",
    "ddp_python_hook",
    "ddp_static_graph",
    "dtensor_full_tensor",
    "dtensor_gradient_norm",
    "dtensor_redistribute",
    "functional_collectives",
    "functional_collectives_with_gradients",
    "tensor_and_data_parallel",
    "tensor_parallel",
    "zero_redundancy_optimizer",
}
"""Rows of which `interception: process_group` sees nothing, or not all."""


@dataclass(frozen=True)
class Table:
    """The folder of a run with the oracle, and that of one with dsprof."""

    oracle: Path
    traces: Path
    nproc: int

    def counts(self, row: str) -> list[dict[str, list[int]]]:
        """Return what torch counted on each rank."""
        files = [self.oracle / f"{row}.rank{rank}.json" for rank in range(self.nproc)]
        return [json.loads(file.read_text()) for file in files]

    def recorded(self, row: str, interception: str) -> Iterator[RankTrace | None]:
        """Yield what each rank recorded; None where it saw nothing."""
        for rank in range(self.nproc):
            files = list((self.traces / interception / row).glob(f"*.rank{rank:05d}.json"))
            yield read_trace(files[0]) if files else None

    def seen(self, row: str, interception: str) -> list[dict[str, list[int]]]:
        """Return what dsprof saw on each rank."""
        return [
            operations(trace, range(len(trace.collectives.op))) if trace else {}
            for trace in self.recorded(row, interception)
        ]

    def agrees(self, row: str, interception: str) -> bool:
        """Tell whether dsprof saw what torch counted, or not all where C++ issues it."""
        counts = self.counts(row)
        sees_all = self.seen(row, interception) == counts
        return all(counts) and sees_all != self._by_cpp(row, interception)

    def faults(self, row: str, interception: str) -> Iterator[str]:
        """Yield what is wrong with the traces by themselves: no end, unmatched waits, hooks off."""
        waits_in_cpp = self._by_cpp(row, interception)
        for trace in self.recorded(row, interception):
            if trace is None:
                continue
            off = {hook.name: hook.why for hook in trace.hooks if hook.why}
            if trace.trailer is None:
                yield "a trace has no end"
            else:
                off |= trace.trailer.failed_hooks
                if trace.trailer.unmatched_waits and not waits_in_cpp:
                    yield f"{trace.trailer.unmatched_waits} unmatched waits"
            yield from (f"hook {name} is off: {why}" for name, why in off.items())

    @staticmethod
    def _by_cpp(row: str, interception: str) -> bool:
        return interception == "process_group" and row in ISSUED_BY_CPP
