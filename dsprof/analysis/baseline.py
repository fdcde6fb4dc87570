"""Costs of communication on a machine, as `dsprof bench` measured it and wrote it down."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import numpy as np

from dsprof.analysis.collectives import busbw_factor
from dsprof.errors import ConfigError
from dsprof.files.decoding import UNDECODABLE
from dsprof.files.inputs import read_input
from dsprof.trace.collectives import family

SCHEMA_VERSION = 1
NOMINAL_CONTENTION = (0.0, 0.5)
"""Where nothing was measured: from hiding that is free to hiding that gains half of what it hides.

The first is a device with engines to spare for communication, the second one on which
communication and compute share what runs them.
"""

_MEASURED_AS = {"recv": "send"}

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Cost = Annotated[float, msgspec.Meta(ge=0)]


class Sample(msgspec.Struct, frozen=True):
    """How long one collective of `nbytes` (S of nccl-tests: the whole array) took: a median."""

    nbytes: _Count
    time_ns: _Cost


class OpCost(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of one operation in one group: time = latency + size x ns_per_byte, and its samples.

    Of operations that no rank leaves before all have entered, the time is that of the last to
    enter; of the others, that of the last to leave.
    """

    op: str  # a family: all_reduce, all_gather, ...
    group: str  # "world", "node" or "pair"
    ranks: tuple[int, ...]
    crosses_nodes: bool
    latency_ns: _Cost
    ns_per_byte: _Cost
    samples: tuple[Sample, ...]  # ascending by size

    @property
    def group_size(self) -> int:
        """The number of ranks in the group."""
        return len(self.ranks)

    def time_ns(self, nbytes: int) -> float:
        """Return the time of `nbytes`: between samples by interpolation, beyond them by the line.

        Below the smallest sample it is that sample's: there latency is all.
        """
        if not self.samples:
            return self.latency_ns + nbytes * self.ns_per_byte
        last = self.samples[-1]
        sizes = [sample.nbytes for sample in self.samples]
        inside = float(np.interp(nbytes, sizes, [sample.time_ns for sample in self.samples]))
        return inside + max(0, nbytes - last.nbytes) * self.ns_per_byte


class Hiding(msgspec.Struct, frozen=True, kw_only=True):
    """Gains of hiding a collective behind compute: first separately, then both at once.

    `low` and `high` bound the factor c by which time = longer + c x shorter: 0 when hiding is free,
    1 when it gains nothing.
    """

    op: str
    nbytes: _Count
    compute_ns: _Cost
    collective_ns: _Cost
    both_ns: _Cost
    low: _Cost
    high: _Cost


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """How fast one rank multiplies square matrices of one precision while all others do so, too."""

    precision: str  # "fp32", "tf32", "bf16", "fp16"
    width: _Count
    time_ns: _Cost  # the median, on the slowest rank

    @property
    def flops_per_s(self) -> float:
        """Floating-point operations a second: a product of matrices has 2 x width^3."""
        return 2 * self.width**3 / max(self.time_ns, 1) * 1e9


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a baseline was measured."""

    hosts: tuple[str, ...]
    world_size: _Count
    backend: str
    device: str  # "cpu", "cuda", ...
    gpus: tuple[str, ...] = ()
    network_devices: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    usable_cpus: int = 0
    threads: int = 0  # that torch computed with
    precision: dict[str, str] = {}  # of dsprof.environment.precision.facts


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of a machine; JSON, in which fields are added and never renamed."""

    schema_version: int
    machine: Machine
    costs: tuple[OpCost, ...]
    hiding: Hiding | None = None
    products: tuple[Product, ...] = ()
    unsupported: dict[str, str] = {}  # op -> why the backend does not do it
    started: str = ""  # ISO 8601, UTC
    dsprof_version: str = ""

    @property
    def contention(self) -> tuple[float, float]:
        """The share of hidden communication that comes back as slower compute: low, high."""
        if self.hiding is None:
            return NOMINAL_CONTENTION
        return self.hiding.low, self.hiding.high

    def cost_ns(
        self, op: str, nbytes: int, group_size: int, *, crosses_nodes: bool | None = None
    ) -> float | None:
        """Return what one `op` of `nbytes` costs; None where nothing like it was measured.

        `crosses_nodes` None takes either kind of group. A group size that was not measured is
        scaled from the nearest: bytes by the bus bandwidth factors of nccl-tests, latency by the
        depth of a tree.
        """
        costs = self.of(op, crosses_nodes=crosses_nodes)
        if not costs or group_size < 2:
            return None
        nearest = min((abs(cost.group_size - group_size), cost.group_size) for cost in costs)[1]
        times = [
            _scaled_ns(cost, nbytes, group_size) for cost in costs if cost.group_size == nearest
        ]
        return median(times)

    def of(self, op: str, *, crosses_nodes: bool | None = None) -> list[OpCost]:
        """Return what was measured of `op`, in any spelling."""
        wanted = _MEASURED_AS.get(family(op), family(op))
        return [
            cost
            for cost in self.costs
            if cost.op == wanted and crosses_nodes in (None, cost.crosses_nodes)
        ]


def _scaled_ns(cost: OpCost, nbytes: int, group_size: int) -> float:
    if cost.group_size == group_size:
        return cost.time_ns(nbytes)
    mine, theirs = busbw_factor(cost.op, group_size), busbw_factor(cost.op, cost.group_size)
    carried = mine / theirs if mine and theirs else 1.0
    depth = log2(group_size) / log2(cost.group_size)
    latency_ns = min(cost.latency_ns, cost.time_ns(nbytes))
    return latency_ns * depth + (cost.time_ns(nbytes) - latency_ns) * carried


def fitted(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return latency in ns and ns per byte of the line that fits best, neither below zero.

    Relative errors count, so that a small message weighs as much as a large one.
    """
    if not samples:
        return 0.0, 0.0
    sizes = np.array([sample.nbytes for sample in samples], np.float64)
    weights = 1 / np.maximum([sample.time_ns for sample in samples], 1.0)
    ones = np.ones_like(weights)
    columns = np.stack([weights, sizes * weights], axis=1)
    (latency, slope), *_ = np.linalg.lstsq(columns, ones, rcond=None)
    if latency < 0:
        return 0.0, _only(sizes * weights)
    return (_only(weights), 0.0) if slope < 0 else (float(latency), float(slope))


def _only(column: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the factor that brings a column nearest to one."""
    return float(column.sum() / (column @ column))


_LARGEST_BYTES = 1 << 24


def read_baseline(path: Path) -> Baseline:
    """Read what `dsprof bench` wrote.

    Raises:
        ConfigError: the file cannot be read or used; one line.
    """
    try:
        baseline = msgspec.json.decode(read_input(path, _LARGEST_BYTES), type=Baseline)
    except OSError as error:
        raise ConfigError(f"cannot read the baseline {path}: {error.strerror}") from None
    except UNDECODABLE as error:
        raise ConfigError(
            f"{path}: not a baseline of dsprof: {error}; measure one with dsprof bench"
        ) from None
    if baseline.schema_version != SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: baseline of schema version {baseline.schema_version}, this dsprof reads "
            f"{SCHEMA_VERSION}; measure again with dsprof bench"
        )
    if problem := next(filter(None, map(_problem, baseline.costs)), None):
        raise ConfigError(f"{path}: not a baseline of dsprof: {problem}")
    return baseline


def _problem(cost: OpCost) -> str:
    """Say what makes a cost unusable; "" when nothing does."""
    sizes = [sample.nbytes for sample in cost.samples]
    if sizes != sorted(set(sizes)):
        return f"the samples of {cost.op} in {cost.group} do not ascend by size"
    return "" if cost.group_size > 1 else f"{cost.op} in a group of {cost.group_size}"
