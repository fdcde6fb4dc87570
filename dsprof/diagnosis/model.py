"""Diagnosis: the one value that every report shows; written as JSON and readable back.

The JSON form is a stable interface: fields are added, never renamed, within a `schema_version`.
Times are nanoseconds, sizes bytes, bandwidths bytes per second; null means "not measurable here".
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from dsprof.analysis.hang.model import HangReport
from dsprof.errors import TraceError
from dsprof.files.decoding import UNDECODABLE
from dsprof.files.json_documents import json_document
from dsprof.files.redaction.known_settings import written_config, written_variables
from dsprof.findings.finding import Finding, Range, Severity, Table

SCHEMA_VERSION = 1
MOST_SOURCES = 256
"""The number of files read that a diagnosis lists at most."""

_LONG_NUMBER = re.compile(rb"\d{19}")


class _Part(msgspec.Struct, kw_only=True):
    """A part of a diagnosis."""


class RunInfo(_Part):
    """Which run this is."""

    world_size: int | None  # null: no file states it
    ranks: list[int]  # present in the traces
    hosts: list[str]
    steps: int  # optimizer steps recorded by the ranks present
    backend: str = ""
    device: str = ""
    versions: dict[str, str] = {}
    run_key: str = ""
    started: str = ""  # ISO 8601, UTC
    setup: str = ""  # e.g. "DeepSpeed ZeRO-2, bf16, accumulation 2"
    source: list[str] = []  # files read, the first MOST_SOURCES
    epoch: int = 1  # which start of a run that restarted, see `epochs`
    epochs: int = 1
    parameters: int | None = None  # elements that the first DeepSpeed engine with steps trains
    is_running: bool = False  # it went on while it was read: its end is not judged
    selection: str = ""  # the part that was read, e.g. "ranks 0-7; steps 100 to 199"; "": all


class HookNote(_Part):
    """A hook that was not in place, or that switched itself off."""

    name: str
    why: str
    ranks: list[int] = []


class Quality(_Part):
    """How far the figures can be trusted."""

    missing_ranks: list[int] = []
    unclean_ranks: list[int] = []  # their files have no trailer
    partial_ranks: list[int] = []  # that recorded only a part of the steps
    exceptions: dict[str, list[int]] = {}  # type, caught by nothing -> ranks that it ended
    is_recorded: bool = True  # dsprof wrote files of the run; else other tools wrote all of them
    strangers: list[str] = []  # skipped files, each with the reason
    dropped_events: int = 0
    broken_lines: int = 0
    counted_only_steps: int = 0  # recorded steps that are not in full detail on every rank
    unmatched_waits: int = 0
    waits: int = 0
    open_collectives: int = 0
    clock_bound_ns: int | None = 0  # None: not known, see `clock_method`
    clock_method: str = ""  # e.g. "one host: shared clock"
    training_cost_share: float | None = None  # estimate: dsprof in training threads / step time
    writer_cost_share: float | None = None  # CPU time of the writer thread; medians over ranks
    hooks: list[HookNote] = []
    notes: list[str] = []
    line: str = ""  # all of it in a few words
    limits: list[str] = []  # what makes figures wrong or a verdict impossible; [] if nothing does


class Headline(_Part):
    """A problem in one line, and what the line says as data.

    Where nothing failed it says where the time of a step goes, and has no rule.
    """

    line: str = ""
    problem: str = ""  # or what limits the step
    fix: str = ""  # imperative; "" where there is nothing to do
    settings: dict[str, Any] = {}  # dotted keys of the DeepSpeed configuration, values to set
    saving: str = ""  # in words, with its share of a step
    saving_ms_per_step: Range | None = None
    saving_share: Range | None = None
    saving_bytes_per_step: int | None = None
    severity: Severity = Severity.NONE
    confidence: str = ""
    rule: str = ""
    ranks: list[int] = []  # [] means all


class Tile(msgspec.Struct, frozen=True):
    """A figure beside the headline."""

    label: str
    value: str
    detail: str = ""


class StepParts(_Part):
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


class TypicalStep(_Part):
    """The step that headline, bar and comparison speak of.

    Its length is a median; its parts have the shares that they have of all these steps together.
    """

    parts: StepParts
    statistic: str  # "median of 28 measured steps"
    steps: int  # of which it is the median
    settled_from: int | None = None  # the step before which the run had not settled
    unsettled_ns: int | None = None  # the longest measured step before it
    mean_ns: int | None = None  # of all measured steps, where it is another: costs are means


class Steps(_Part):
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


class Throughput(_Part):
    """Throughput of all ranks together; null where the record does not say."""

    tokens_per_step: float | None = None
    tokens_per_s: float | None = None
    samples_per_step: int | None = None
    samples_per_s: float | None = None


class UtilisationInfo(_Part):
    """Which share of the hardware's peak the model of a step comes to; an estimate."""

    share: float | None = None
    flops_per_step: float | None = None  # of one rank: forward and backward, no recomputation
    peak_flops_per_s: float | None = None  # of one rank's device
    precision: str = ""  # in which the model computes
    text: str = ""  # the same as a sentence, or why it is not known


class KernelRow(_Part):
    """Kernels of one name or family, over the ranks present."""

    name: str
    calls: int
    total_ns: int


class DeviceRow(_Part):
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
    recognised_beyond: list[KernelRow] = []  # by library
    unrecognised: list[KernelRow] = []  # long kernels on streams for communication
    is_sampled: bool = False  # the file is a sample of what happened


class CommunicationRow(_Part):
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


class CallSiteRow(_Part):
    """A line of the program that issues collectives; means of one rank's step."""

    site: str  # "file:line function", "" where no frame of the program was on the stack
    phase: str
    op: str
    calls_per_step: float
    exposed_ns: float | None


class TransferRow(_Part):
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


class ExpectedCurve(_Part):
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


class FlightRow(_Part):
    """A process group in which collectives were in flight when flight recorders were dumped."""

    group: str
    name: str
    ranks: list[int]
    in_flight: int  # collectives, over the dumped ranks
    p2p_in_flight: int  # sends and receives
    number: int | None  # of the first collective that cannot end
    op: str = ""
    dtype: str = ""
    elements: int | None = None
    waiting: list[int] = []  # have called it
    absent: list[int] = []  # have not
    unfinished: list[int] = []  # have not ended what others have
    without_dump: list[int] = []


class FlushRow(_Part):
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


class FillMoment(_Part):
    """A reduction of a bucket; times from the start of the step."""

    since_ns: int  # when the bucket was empty
    start_ns: int
    end_ns: int
    elements: int
    capacity: int
    bytes: int
    cause: str


class BucketFill(_Part):
    """Buckets of a rank's step of median length, in order of time."""

    rank: int
    step: int
    duration_ns: int
    flushes: list[FillMoment] = []  # the first 200
    left_out: int = 0


class FetchRow(_Part):
    """Parameter fetches by kind, phase and FSDP module."""

    kind: str
    phase: str
    calls: int
    calls_per_step: float
    elements: int
    wait_ns: int
    library: str = ""  # "FSDP1", "FSDP2"; "" for ZeRO-3
    module: str = ""


class CopyRow(_Part):
    """Copies between host and device by kind and phase, sums over ranks and measured steps."""

    what: str  # "gradient", "parameter" or "optimizer state"
    direction: str  # "to host", "to device" or "within host"
    phase: str
    calls: int
    calls_per_step: float  # of one rank
    bytes: int
    bytes_per_step: float  # of one rank
    duration_ns: int


class AnnotationRow(_Part):
    """Annotated spans by `dsprof.annotate`, sums over ranks and measured steps."""

    name: str
    calls: int
    calls_per_step: float  # of one rank
    duration_ns: int  # on the host's clock; of spans of one name at the same time once
    exposed_ns: int | None  # of it, waits for communication
    rank_ns: dict[str, int] = {}  # rank -> time of a step, the longest first, of up to 64


class RankMemory(_Part):
    """Memory of one rank; null where it could not be read."""

    rank: int
    peak_rss_bytes: int | None = None
    last_rss_bytes: int | None = None
    host_total_bytes: int | None = None
    least_host_available_bytes: int | None = None
    shm_total_bytes: int | None = None
    least_shm_free_bytes: int | None = None
    device: dict[str, int] = {}  # largest value of each counter
    steps: list[int] = []  # samples at step ends: step, then the values below
    rss_bytes: list[int] = []
    allocated_bytes: list[int] = []
    reserved_bytes: list[int] = []
    stuck_bytes: list[int] = []  # free in segments that are partly used
    gathered_bytes: list[int | None] = []  # sharded parameters, the most at once in the step
    reducing_bytes: list[int | None] = []  # gradient buckets in flight, the most at once


class StackRow(_Part):
    """Memory in use that a call stack allocated; calls from the outermost to the innermost."""

    calls: list[str]  # "file:line function"; [] where none was recorded
    bytes: int


class SnapshotRow(_Part):
    """The memory of a device as its allocator laid it out: reserved = active + cached + stuck."""

    rank: int
    device: int
    reserved_bytes: int
    active_bytes: int
    cached_bytes: int  # given back when asked
    stuck_bytes: int  # free in segments that are partly used
    largest_free_bytes: int
    expandable_bytes: int  # reserved in expandable segments
    private_bytes: int  # reserved in pools of their own
    segments: int
    partly_used: int  # segments
    failed_bytes: int | None = None  # size of the last request that failed
    peak_bytes: int | None = None  # requested at most, as far as the history tells
    peak_before_bytes: int | None = None  # of these, allocated before the history began
    peak_holders: dict[str, int] = {}  # caller -> bytes held at the peak
    stacks: list[StackRow] = []  # of the memory in use, the largest 200; [] where none is known


class Difference(_Part):
    """Something that is not the same on all ranks."""

    name: str
    values: dict[str, list[int]]  # value ("" for unset) -> ranks


class EngineSettings(_Part):
    """The DeepSpeed configuration of one engine."""

    engine: int
    kind: str = ""  # class of the engine
    parameters: int | None = None  # elements that it trains
    written: dict[str, Any] = {}
    effective: dict[str, Any] = {}


class EnvironmentInfo(_Part):
    """Variables, versions, limits; what differs between ranks is listed separately."""

    variables: dict[str, str] = {}  # common to all ranks present
    effective: dict[str, str] = {}
    files: dict[str, dict[str, str]] = {}
    versions: dict[str, str] = {}
    gpus: list[str] = []
    network_devices: list[str] = []
    limits: dict[str, int] = {}
    redacted: list[str] = []
    differences: list[Difference] = []
    written_config: dict[str, Any] = {}  # DeepSpeed configuration of the first engine
    effective_config: dict[str, Any] = {}
    engines: list[EngineSettings] = []  # all of them, where there are several
    accelerators: list[str] = []  # of the first host, as its kernel lists them
    adapters: list[str] = []
    machine: dict[str, str] = {}  # kernel, driver, modules..., where all ranks have the same
    precision: dict[str, str] = {}  # what is multiplied fast, where all ranks have the same
    libraries: list[str] = []  # of communication, as ranks have loaded them


class LoggedFact(_Part):
    """Something that a library stated in the logs."""

    kind: str  # "network", "path"
    value: str
    ranks: list[int]  # empty for what is said of the job
    lines: int


class LogMarkRow(_Part):
    """A warning or error of the only log, and which part of the log is before it."""

    rank: int | None  # None: the line names none
    place: float
    is_error: bool
    text: str


class LoggedCallRow(_Part):
    """Calls that another tool timed and wrote into a log; sums over the ranks that wrote.

    Bandwidths are computed from its sizes and times as nccl-tests defines them, not taken over.
    """

    source: str
    op: str
    caller: str
    message_bytes: int  # to the two decimals that it prints
    calls: int
    total_ns: int | None
    mean_ns: float | None
    algbw: float | None
    busbw: float | None  # as if the group were the world: the tool does not know groups
    world_size: int | None = None  # as its bandwidths imply
    straggler_ns: int | None = None
    note: str = ""


class Bar(_Part):
    """One rectangle of a timeline."""

    rank: int
    lane: str  # "activity", "phase", "communication", "copies", "stream" or "group" and its name
    kind: str  # op or phase name
    start_ns: int  # from the start of the step
    end_ns: int
    label: str = ""
    group: str = ""  # of ranks; "": not recorded
    module: str = ""  # on whose behalf

    @property
    def is_communication(self) -> bool:
        """Whether it is a collective, a send or a recv."""
        return self.lane == "communication" or self.lane.startswith("group ")


class Timeline(_Part):
    """One step in detail."""

    step: int
    why: str  # "worst", "median", "first", "named" (by a finding), "sample" or "chosen"; or, in
    # place of a step, "recording" or "dump" (of a flight recorder)
    duration_ns: int
    bars: list[Bar] = []
    left_out: int = 0  # bars merged or dropped to keep the figure light


class TimelinePlace(_Part):
    """Where a finding shows in the timelines."""

    finding: int  # its place among the findings
    step: int
    operation: str = ""  # kind of the bars that it is about; "": not one in particular
    ranks: list[int] = []  # []: all


class WaitMatrix(_Part):
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


class StepMark(_Part):
    """A cell, or with no rank a column, of a map of steps that stands out."""

    kind: Literal["straggler", "outlier", "change"]
    step: int
    column: int
    rank: int | None  # null: all of them
    row: int | None
    text: str


class StepMap(_Part):
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


class BaselineInfo(_Part):
    """Where the baseline came from that was given for the report."""

    source: str  # file
    is_used: bool  # not, where it is of another backend or kind of device
    started: str = ""  # when it was measured, ISO 8601, UTC
    backend: str = ""
    hosts: list[str] = []
    world_size: int = 0
    contention: tuple[float, float] | None = None  # of hidden communication: low, high
    differences: list[str] = []  # between its machine and that of the run


class ArrivalRow(_Part):
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


class PeerTraffic(_Part):
    """Point-to-point traffic from ranks (rows) to ranks (columns), of a step.

    Beyond 32 ranks rows are hosts, or the busiest ranks and the others together.
    """

    names: list[str] = []
    bytes: list[list[int | None]] = []  # null where a size is not known
    calls: list[list[float]] = []
    waited_ns: list[list[int | None]] = []  # by the receiver; null where that was not measured

    def __post_init__(self) -> None:
        """Refuse a matrix that no renderer could show: one may come from a file.

        Raises:
            ValueError: it has not one cell for each pair of names.
        """
        for cells in (self.bytes, self.calls, self.waited_ns):
            if [len(row) for row in cells] != [len(self.names)] * len(self.names):
                raise ValueError("the matrix of transfers has not one cell for each pair of names")


class GroupLayout(_Part):
    """Comparable process groups, of which a rank is in one at most."""

    name: str
    size: int  # ranks of the largest
    groups: int
    hosts: int | None  # that the ranks of one group are on, at most; null if some are unknown
    group_of: list[int]  # of each rank of the topology; -1: in none
    bytes_per_step: float | None  # of one rank; null where a size is not known
    exposed_ns: float | None  # of one rank's step


class Topology(_Part):
    """Which ranks are on which host and in which groups; of up to 64 ranks."""

    ranks: list[int] = []
    hosts: list[str] = []  # of each rank, "" where unknown
    layouts: list[GroupLayout] = []  # the largest groups first
    left_out_ranks: int = 0
    within_hosts: str = ""  # link, where it is known
    between_hosts: str = ""

    def __post_init__(self) -> None:
        """Refuse what no renderer could show: one may come from a file.

        Raises:
            ValueError: a list has not one element for each rank.
        """
        sizes = {len(self.hosts), *(len(layout.group_of) for layout in self.layouts)}
        if sizes != {len(self.ranks)}:
            raise ValueError("the topology has not one host and group for each rank")


class ArrivalInfo(_Part):
    """Last arrivals; the ranks for whom others waited most first."""

    rows: list[ArrivalRow] = []
    pairs: WaitPairs = msgspec.field(default_factory=WaitPairs)  # of up to 24 of these ranks
    last_ranks: dict[str, int] = {}  # step -> the rank for whom others waited longest in it
    left_out_ranks: int = 0
    one_in: int = 1  # how many collectives were kept of so many; sums are scaled
    by_ends: bool = False  # clocks are not known: ranks are set by the ends of collectives
    doubt_ns: int = 0  # below it, differences between arrivals are not interpreted
    attribution: str = ""  # whether exposed time is transfer, or waiting for late ranks


class HistorySpan(_Part):
    """The steps that ended in one span of a rolling recording, over the ranks."""

    begin_s: int  # on the wall clock, since 1970
    ranks: int
    steps: int  # of the rank with most
    mean_ns: int
    fastest_ns: int
    slowest_ns: int
    slowest_step: int
    slowest_rank: int
    blocked_ns: int  # mean of a step: the host's time in collectives
    stalled_ns: int  # mean of a step: waits of a device's streams for communication
    bytes: int  # mean of a step and rank
    rss_bytes: int | None = None  # of the rank with most
    device_bytes: int | None = None


class KeptStep(_Part):
    """A step whose details a rolling recording kept, or several that were captured together."""

    step: int
    why: str
    times: float | None  # its time over the usual time then; of several the longest
    ranks: int  # that kept it
    late_ranks: list[int] = []  # of a captured step: those that did not
    cause: str = ""  # of a captured step: what happened, and on which rank
    steps: int = 1


class History(_Part):
    """The whole of a rolling recording in sums; empty for other recordings.

    Of selected steps: only how many there were and how many are kept, if some are not.
    Without steps: only how long the time lasts of which something is kept.
    """

    length_s: int = 0  # of a span
    spans: list[HistorySpan] = []
    steps: int = 0  # recorded, of the rank with most
    lost_steps: int = 0  # in between, not recorded, of the rank with most
    detailed_steps: int = 0  # of the rank that lacks most
    newest_from: int = 0  # the first step since which none is left out, on any rank
    newest_ns: int = 0  # without steps, where older records are overwritten
    kept: list[KeptStep] = []  # those that were not taken as samples, most telling first
    kept_left_out: int = 0  # more of them
    map: StepMap = msgspec.field(default_factory=StepMap)  # columns are spans of time


class TimeSpan(_Part):
    """What ranks without steps recorded in one span of a rolling recording; means of a rank."""

    begin_s: int  # on the wall clock, since 1970
    ranks: int
    recorded_ns: int  # time of the span that was recorded
    waited_ns: int  # of this: host blocked in collectives or, where they wait instead, streams
    calls: int
    bytes: int
    rss_bytes: int | None = None  # of the rank with most


class TimeOp(_Part):
    """An operation over all of these spans; sums over the ranks."""

    op: str
    calls: int
    bytes: int
    blocked_ns: int


class TimeSpans(_Part):
    """Ranks without steps over the whole of a rolling recording in sums; empty for others."""

    length_s: int = 0  # of a span
    ranks: int = 0
    spans: list[TimeSpan] = []
    ops: list[TimeOp] = []  # that with most bytes first


class EpochRow(_Part):
    """An epoch of the run: from a start of the process group to the next. Times since the first."""

    number: int
    is_shown: bool  # the other parts of the diagnosis describe this one
    started: str  # ISO 8601, UTC
    world_size: int
    hosts: list[str]
    restarts: int | None  # starts of the workers before it, as the launcher counts
    start_ns: int
    end_ns: int  # last record of any rank
    first_step_ns: int | None = None  # start of its first step
    last_step_ns: int | None = None  # end of its last one
    steps: int = 0
    first_step: int | None = None  # as training counts over restarts; null: unknown
    last_step: int | None = None
    end: str = ""  # "exited", "crashed", "stuck", "killed", "nodes joined", "new process group"...
    ranks: list[int] = []  # to inspect, by how it ended
    why: str = ""
    gap_ns: int | None = None  # from the last step of an earlier epoch to its first one
    unrecorded: int = 0  # starts right before it that ended before the first collective
    repeated_steps: int | None = None  # taken before by an earlier epoch; null: unknown
    repeated_ns: int = 0


class Epochs(_Part):
    """The epochs of a run that was started more than once; empty for other runs."""

    rows: list[EpochRow] = []
    whole_ns: int = 0  # from the first start to the last sign of life
    gap_ns: int = 0
    repeated_ns: int = 0
    lost_share: float = 0.0  # of the whole time: gaps and steps known to be repeated
    unread: int = 0  # earlier epochs


class ThresholdInfo(_Part):
    """A threshold in force."""

    rule: str
    name: str
    value: float | int | str | bool | list[float | int | str | bool | None] | None
    is_default: bool = True


class RuleInfo(_Part):
    """A rule that judged the run: what a page says of it beside its findings."""

    rule: str
    title: str  # when it passes
    why: str  # it matters
    category: str
    package: str = ""  # which brings it as a plugin; "": dsprof
    page: str = ""  # that explains it, in Markdown; of rules with problems or remarks only
    judges_end: bool = False  # how a run ended: while it lasts, it says nothing


class Diagnosis(_Part):
    """A run, its costs and their causes."""

    run: RunInfo
    quality: Quality
    steps: Steps
    schema_version: int = SCHEMA_VERSION
    dsprof_version: str = ""
    verdict: str = ""  # one sentence
    headline: Headline = msgspec.field(default_factory=Headline)
    next_lines: list[Headline] = []  # the next two problems
    kind: str = ""  # what was given: "training", "hang", "snapshot", "log", "device", "collectives"
    tiles: list[Tile] = []  # the figures that matter for this kind
    findings: list[Finding] = []  # most valuable first; every rule at least once
    communication: list[CommunicationRow] = []
    call_sites: list[CallSiteRow] = []  # the most exposed first
    devices: list[DeviceRow] = []  # ranks whose traces have device times
    hang: HangReport | None = None  # where a hang or crash is known
    flights: list[FlightRow] = []  # groups with something in flight, where dumps were given
    flushes: list[FlushRow] = []
    bucket_fill: BucketFill | None = None  # where buckets have a capacity
    fetches: list[FetchRow] = []
    copies: list[CopyRow] = []
    annotations: list[AnnotationRow] = []
    memory: list[RankMemory] = []  # of more than 64 ranks, those with extremes
    snapshots: list[SnapshotRow] = []
    environment: EnvironmentInfo = msgspec.field(default_factory=EnvironmentInfo)
    logged: list[LoggedFact] = []
    logged_calls: list[LoggedCallRow] = []
    log_marks: list[LogMarkRow] = []  # the first 500, in the order of the log
    timelines: list[Timeline] = []
    timeline_places: list[TimelinePlace] = []
    waits: WaitMatrix = msgspec.field(default_factory=WaitMatrix)
    step_map: StepMap = msgspec.field(default_factory=StepMap)
    role_maps: list[StepMap] = []  # of more than 64 ranks, by their places in groups
    arrivals: ArrivalInfo = msgspec.field(default_factory=ArrivalInfo)
    peer_traffic: PeerTraffic = msgspec.field(default_factory=PeerTraffic)
    topology: Topology = msgspec.field(default_factory=Topology)
    history: History = msgspec.field(default_factory=History)
    time_spans: TimeSpans = msgspec.field(default_factory=TimeSpans)
    epochs: Epochs = msgspec.field(default_factory=Epochs)
    thresholds: list[ThresholdInfo] = []
    rules: list[RuleInfo] = []
    baseline: BaselineInfo | None = None
    transfers: list[TransferRow] = []
    expected_curves: list[ExpectedCurve] = []
    utilisation: UtilisationInfo = msgspec.field(default_factory=UtilisationInfo)
    throughput: Throughput = msgspec.field(default_factory=Throughput)

    @property
    def asked_and_sent(self) -> Table | None:
        """Requested traffic beside what was sent; None if not compared."""
        found = (f for f in self.findings if f.rule == "unexplained-traffic")
        return next((table for finding in found for table in finding.evidence), None)

    def threshold(self, rule: str, name: str) -> float | None:
        """Return a threshold that is in force; None if there is none, or it is no number."""
        values = (one.value for one in self.thresholds if (one.rule, one.name) == (rule, name))
        value = next(values, None)
        return value if isinstance(value, (int, float)) else None


def to_json(diagnosis: Diagnosis) -> bytes:
    """Encode a diagnosis as indented JSON."""
    return json_document(diagnosis)


def from_json(data: bytes, where: str) -> Diagnosis:
    """Decode what `to_json` wrote; `where` names the source in messages.

    Raises:
        TraceError: the data is no diagnosis of this schema version.
    """
    try:
        diagnosis = msgspec.json.decode(data, type=Diagnosis)
    except UNDECODABLE as error:
        raise TraceError(f"{where}: not a dsprof diagnosis: {error}") from None
    if diagnosis.schema_version != SCHEMA_VERSION:
        raise TraceError(
            f"{where}: diagnosis of schema version {diagnosis.schema_version}, this dsprof reads "
            f"{SCHEMA_VERSION}; render it with the dsprof that wrote it"
        )
    if _LONG_NUMBER.search(data) and not _fits(msgspec.to_builtins(diagnosis)):
        raise TraceError(f"{where}: not a dsprof diagnosis: a number is beyond 64 bits")
    return msgspec.structs.replace(diagnosis, environment=_written(diagnosis.environment))


def _written(found: EnvironmentInfo) -> EnvironmentInfo:
    """Hide settings that an earlier dsprof wrote, as recording hides them."""
    replace = msgspec.structs.replace
    return replace(
        found,
        variables=written_variables(found.variables),
        effective=written_variables(found.effective),
        files={name: written_variables(values) for name, values in found.files.items()},
        written_config=written_config(found.written_config),
        effective_config=written_config(found.effective_config),
        engines=[
            replace(
                one, written=written_config(one.written), effective=written_config(one.effective)
            )
            for one in found.engines
        ],
    )


def _fits(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_fits, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_fits, value))
    return not isinstance(value, int) or -(2**63) <= value < 2**63
