"""Steps, their parts, and what the device did in them."""

from __future__ import annotations

from typing import Literal

import msgspec


class StepParts(msgspec.Struct):
    """One step split into parts that sum to `total_ns`; mean over the ranks present."""

    step: int | None  # None: all steps together
    compute_ns: int | None
    exposed_comm_ns: int | None
    copies_ns: int | None
    idle_ns: int | None
    other_ns: int
    total_ns: int
    micro_steps: int | None = None  # of the rank with most
    slowest_rank: int | None = None
    fastest_total_ns: int | None = None  # of the fastest rank
    slowest_total_ns: int | None = None  # of the slowest rank
    is_measured: bool = True  # whether `total` and the rules take it
    is_counted: bool = False  # collectives are only in counters, on one rank at least
    calls: int = 0  # collectives on the wire of one rank, counted ones included
    bytes: int | None = None  # sum over these; None if the size of one is unknown
    ranks: int | None = None  # number of ranks that recorded the step
    began_s: int | None = None  # when the first rank began it, in s since 1970


class TypicalStep(msgspec.Struct):
    """The step that headline, bar and comparison speak of.

    Its length is a median; its parts have the shares that they have of all these steps together,
    except for a few that are far longer.
    """

    parts: StepParts
    statistic: str  # "median of 28 measured steps"
    steps: int  # of which it is the median
    settled_from: int | None = None  # the step before which the run had not settled
    unsettled_ns: int | None = None  # the longest measured step before it
    long_steps: int = 0  # those that its parts exclude
    mean_ns: int | None = None  # of all measured steps, where it is another: costs are means


class Steps(msgspec.Struct):
    """Steps, of a long run a sample of them, and the sum of the measured ones."""

    total: StepParts
    rows: list[StepParts] = []
    warmup_steps: int = 0  # first steps that `rows` shows but `total` and the rules leave out
    method: str = ""  # how the parts were measured
    measured_steps: int = 0  # steps that `total` is the sum of
    rank_steps: int | None = None  # of all ranks together: what sums of collectives are of
    exposed_share: float | None = None  # exposed communication / time of the measured steps
    estimated_share: float = 0.0  # of the exposed communication: waits in C++, an upper bound
    mean_total_ns: int | None = None  # of a measured step, mean over the ranks; None without any
    median_total_ns: int | None = None
    typical: TypicalStep | None = None  # None without a measured step


class Throughput(msgspec.Struct):
    """Throughput of all ranks together; null where the record does not say."""

    tokens_per_step: float | None = None
    tokens_per_s: float | None = None
    samples_per_step: int | None = None
    samples_per_s: float | None = None


class UtilisationInfo(msgspec.Struct):
    """Which share of the hardware's peak the model of a step comes to; an estimate."""

    share: float | None = None
    flops_per_step: float | None = None  # of one rank: forward and backward, no recomputation
    peak_flops_per_s: float | None = None  # of one rank's device
    precision: str = ""  # in which the model computes
    text: str = ""  # the same as a sentence, or why it is not known


class DeviceRow(msgspec.Struct):
    """Activity of the accelerator of one rank while a profiler watched.

    compute + exposed + copies + idle = span. `named_*` count as communication only kernels with
    "nccl" or "rccl" in their names, as most tools do.
    """

    rank: int
    span_ns: int
    compute_ns: int
    communication_ns: int
    exposed_comm_ns: int
    copies_ns: int
    idle_ns: int
    overlap: float | None  # share of communication during which another kernel ran
    named_comm_ns: int
    named_exposed_ns: int
    kernels: int
    communication_kernels: int
    operations: dict[str, int] = {}
    is_sampled: bool = False  # the file is a sample of what happened


class AnnotationRow(msgspec.Struct):
    """Annotated spans by `dsprof.annotate`, sums over ranks and measured steps."""

    name: str
    calls: int
    calls_per_step: float  # of one rank
    duration_ns: int  # on the host's clock; of spans of one name at the same time once
    exposed_ns: int | None  # of it, waits for communication
    rank_ns: dict[str, int] = {}  # rank -> time of a step, the longest first, of up to 64


class WaitMatrix(msgspec.Struct):
    """Exposed communication by rank (rows) and step (columns), in ns; -1 for no data."""

    ranks: list[int] = []
    steps: list[int] = []
    exposed_ns: list[list[int]] = []
    left_out_ranks: int = 0

    def __post_init__(self) -> None:
        """Refuse a matrix that no renderer could show: one may come from a file.

        Raises:
            ValueError: it has not one row or name per rank, or a row not one cell per step.
        """
        is_full = len(self.exposed_ns) == len(self.ranks)
        if not is_full or any(len(row) != len(self.steps) for row in self.exposed_ns):
            raise ValueError("the matrix of waits has not one cell for each rank and step")


class StepMark(msgspec.Struct):
    """A cell, or with no rank a column, of a map of steps that stands out."""

    kind: Literal["straggler", "outlier", "change"]
    step: int
    column: int
    rank: int | None  # null: all of them
    row: int | None
    text: str


class StepMap(msgspec.Struct):
    """Ranks (rows) by steps (columns) in ns; -1 for no data.

    Neighbours share a row or column where there are many: a cell is then the rank of them
    that waits least for communication, mean over its steps.
    """

    ranks: list[tuple[int, int]] = []  # first and last of each row
    steps: list[tuple[int, int]] = []  # first and last of each column
    row_hosts: int = 0  # whole hosts of a row; 0: a row is one rank, or hosts differ
    row_names: list[str] = []  # of rows that are means of ranks, such as "pipeline stage 0"
    total_ns: list[list[int]] = []
    exposed_ns: list[list[int]] = []
    compute_ns: list[list[int]] = []
    marks: list[StepMark] = []

    def __post_init__(self) -> None:
        """Refuse a map that no renderer could show: one may come from a file.

        Raises:
            ValueError: it has not one row per rank, or a row has not one cell per step.
        """
        for cells in (self.total_ns, self.exposed_ns, self.compute_ns):
            if [len(row) for row in cells] != [len(self.steps)] * len(self.ranks):
                raise ValueError("the map of steps has not one cell for each rank and step")
        if self.row_names and len(self.row_names) != len(self.ranks):
            raise ValueError("the map of steps has not one name for each row")
