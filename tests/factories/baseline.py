"""Baselines made by hand: a line for each operation, and what hiding gains."""

from __future__ import annotations

from typing import Any

from dsprof.analysis.baseline import SCHEMA_VERSION, Baseline, Hiding, Machine, OpCost, Sample


def machine(**fields: Any) -> Machine:
    """The machine of the factory's traces: one host, gloo, CPU."""
    given = {"hosts": ("node-a",), "world_size": 2, "backend": "gloo", "device": "cpu"}
    return Machine(**(given | fields))


def cost(op: str = "all_reduce", size: int = 2, **fields: Any) -> OpCost:
    """100 us and 1 ns a byte, sampled at 1 and 4 MB, where nothing else is said."""
    latency, slope = fields.get("latency_ns", 100_000.0), fields.get("ns_per_byte", 1.0)
    samples = tuple(Sample(n, latency + slope * n) for n in (1_000_000, 4_000_000))
    given = {"group": "world", "ranks": tuple(range(size)), "crosses_nodes": False}
    given |= {"latency_ns": latency, "ns_per_byte": slope, "samples": samples}
    return OpCost(op=op, **(given | fields))


def hiding(low: float, high: float) -> Hiding:
    parts = {"compute_ns": 10e6, "collective_ns": 10e6, "both_ns": 12e6}
    return Hiding(op="all_reduce", nbytes=1 << 20, low=low, high=high, **parts)


def baseline(*costs: OpCost, **fields: Any) -> Baseline:
    given = {"schema_version": SCHEMA_VERSION, "machine": machine(), "costs": costs or (cost(),)}
    return Baseline(**(given | fields))
