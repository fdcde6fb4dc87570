"""Communication, its speed, late arrivals, and what ZeRO, DDP and FSDP did with it."""

from __future__ import annotations

import msgspec


class CommunicationRow(msgspec.Struct):
    """Like collectives; calls, bytes and times are sums over ranks and measured steps."""

    op: str
    requested: str
    group: str
    group_size: int | None
    phase: str
    size_class: str  # e.g. "1-4 MiB"
    dtype: str
    is_async: bool
    on_wire: bool
    calls: int
    bytes: int | None
    calls_per_step: float  # of one rank
    bytes_per_step: float | None  # of one rank
    in_flight_ns: int | None  # calls of one rank in flight at the same time count once
    exposed_ns: int | None
    algbw: float | None  # of the calls whose completion is known to a tenth of their time
    busbw: float | None
    site: str = ""  # the most frequent call site
    role: str = ""  # what the group is for: "data", "tensor"..., "" if unknown
    group_ranks: list[list[int]] = []  # of up to 4 such groups, where they are small


class CallSiteRow(msgspec.Struct):
    """A line of the program that issues collectives; means of one rank's step."""

    site: str  # "file:line function", "" where no frame of the program was on the stack
    phase: str
    op: str
    calls_per_step: float
    exposed_ns: float | None


class TransferRow(msgspec.Struct):
    """How fast like collectives were after all ranks had arrived: their call of median speed."""

    op: str
    group: str
    group_size: int
    hosts: int  # on which the group has ranks
    size_class: str
    calls: int  # that nothing else disturbed
    bytes: int  # of one call
    time_ns: int
    algbw: float
    busbw: float
    quick_busbw: float  # that a quarter of the calls reach: what low-bus-bandwidth judges
    expected_busbw: float | None = None  # at this size
    expected_from: str = ""  # "the baseline", or the link that others measured
    is_judged: bool = False  # by low-bus-bandwidth: large and frequent enough


class ExpectedCurve(msgspec.Struct):
    """The bus bandwidth that is expected of an operation in a group, over the sizes of the run."""

    op: str
    group: str
    group_size: int
    hosts: int
    source: str  # "the baseline", or the link that others measured
    bytes: list[int]
    busbw: list[float]

    def __post_init__(self) -> None:
        """Refuse a curve that no renderer could draw: one may come from a file.

        Raises:
            ValueError: it has not one speed for each size, or one that no logarithm has.
        """
        if len(self.bytes) != len(self.busbw) or min([*self.bytes, *self.busbw], default=1) <= 0:
            raise ValueError("an expected curve has not one speed for each size")


class FlushRow(msgspec.Struct):
    """Bucket flushes that are alike, over ranks and steps of `steps.total`."""

    stage: int  # of ZeRO, -1 for other libraries
    cause: str
    dtype: str
    elements: int
    capacity: int
    fill: float | None
    bytes: int  # of one flush
    parameters: int
    slot: int | None  # of the buffers that take turns; None where there is one
    flushes: int
    flushes_per_step: float  # of one rank
    wire_ops: list[str]  # kinds issued
    wire_calls: int
    duration_ns: int  # mean
    exposed_ns: int | None  # mean
    library: str = ""  # "DDP", "FSDP1", "FSDP2"; "" for ZeRO
    module: str = ""
    bucket: int | None = None  # number of a DDP bucket, in the order in which they get ready


class FillMoment(msgspec.Struct):
    """A reduction of a bucket; times from the start of the step."""

    since_ns: int  # when the bucket was empty
    start_ns: int
    end_ns: int
    elements: int
    capacity: int
    bytes: int
    cause: str


class BucketFill(msgspec.Struct):
    """Buckets of a rank's step of median length, in order of time."""

    rank: int
    step: int
    duration_ns: int
    flushes: list[FillMoment] = []  # the first 200
    left_out: int = 0


class FetchRow(msgspec.Struct):
    """Parameter fetches by kind, phase and FSDP module."""

    kind: str
    phase: str
    calls: int
    calls_per_step: float
    elements: int
    wait_ns: int
    library: str = ""  # "FSDP1", "FSDP2"; "" for ZeRO-3
    module: str = ""


class CopyRow(msgspec.Struct):
    """Copies between host and device by kind and phase, sums over ranks and measured steps."""

    what: str  # "gradient", "parameter" or "optimizer state"
    direction: str  # "to host", "to device" or "within host"
    phase: str
    calls: int
    calls_per_step: float  # of one rank
    bytes: int
    bytes_per_step: float  # of one rank
    duration_ns: int


class BaselineInfo(msgspec.Struct):
    """Where the baseline came from that was given for the report."""

    source: str  # file
    is_used: bool  # not, where it is of another backend or kind of device
    started: str = ""  # when it was measured, ISO 8601, UTC
    backend: str = ""
    hosts: list[str] = []
    world_size: int = 0
    contention: tuple[float, float] | None = None  # of hidden communication: low, high
    differences: list[str] = []  # between its machine and that of the run


class ArrivalRow(msgspec.Struct):
    """One rank at the collectives of measured steps that need all ranks of a group; ns a step."""

    rank: int
    last: int  # collectives to which it came last, beyond the doubt of the clocks
    collectives: int  # that all ranks of their groups recorded
    caused_ns: int  # mean wait of the others for it
    waited_ns: int  # for the last to arrive
    transfer_ns: int  # what else collectives held it


class WaitPairs(msgspec.Struct):
    """How long ranks (rows) waited for ranks (columns) in collectives; ns of a step."""

    ranks: list[int] = []
    waited_ns: list[list[int]] = []

    def __post_init__(self) -> None:
        """Refuse a matrix that no renderer could show: one may come from a file.

        Raises:
            ValueError: it has not one cell for each pair of ranks.
        """
        if [len(row) for row in self.waited_ns] != [len(self.ranks)] * len(self.ranks):
            raise ValueError("the matrix of waits has not one cell for each pair of ranks")


class ArrivalInfo(msgspec.Struct):
    """Last arrivals; the ranks for whom others waited most first."""

    rows: list[ArrivalRow] = []
    pairs: WaitPairs = msgspec.field(default_factory=WaitPairs)  # of up to 24 of these ranks
    last_ranks: dict[str, int] = {}  # step -> the rank for whom others waited longest in it
    left_out_ranks: int = 0
    one_in: int = 1  # how many collectives were kept of so many; sums are scaled
    by_ends: bool = False  # clocks are not known: ranks are set by the ends of collectives
    doubt_ns: int = 0  # below it, differences between arrivals are not interpreted
    attribution: str = ""  # whether exposed time is transfer, or waiting for late ranks
