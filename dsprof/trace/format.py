"""The native trace: Chrome Trace Event JSON, an array with one event a line.

The field `cat` says which kind of event a line is; Perfetto shows the file as it is. `ts` and `dur`
are microseconds since the start of the trace (three decimals: nanoseconds); every field in `args`
whose name ends in `_ns` is an offset from the same start in integer nanoseconds, or a duration
where its comment says so. A field that has its default value is not written.

docs/trace-format.md describes the file for people who write other readers.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dsprof.environment import EnvSnapshot

SCHEMA_VERSION = 1
LARGEST_WORLD = 1 << 20

FILE_PATTERN = "trace*.rank*.json"
"""How native trace files are found in a folder."""


EXIT, INTERRUPTED = "exit", "interrupted"
"""Why a trace ended: its process did, by itself or by Ctrl-C."""


class _Event(msgspec.Struct, gc=False, omit_defaults=True, tag_field="cat", kw_only=True):
    """What every line has."""

    name: str = ""
    ph: str = "X"
    pid: int = 0  # the rank
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0


class Header(msgspec.Struct, omit_defaults=True):
    """Who wrote the file, in which run, with which clock."""

    schema_version: int
    run_key: str  # equal on all ranks: launcher's id, master address and port, restarts, world
    rank: int
    world_size: int
    host: str
    pid: int
    started_epoch_ns: int
    started_monotonic_ns: int
    boot_id: str = ""
    local_rank: int = -1
    backend: str = ""
    device: str = "cpu"
    versions: dict[str, str] = {}
    config: dict[str, Any] = {}
    anonymized: bool = False


class HookStatus(msgspec.Struct, omit_defaults=True):
    """Whether a hook is in place; it is not, for no fault, until its module gets imported."""

    name: str
    module: str = ""
    installed: bool = False
    why: str = ""  # what went wrong when its module was there
    lost: list[str] = []  # what it does not record, as this release lacks names that it watches


class ParameterLayout(msgspec.Struct, omit_defaults=True, frozen=True):
    """How ZeRO lays out the parameters of one rank's model, in elements, padding included."""

    flat: tuple[int, ...] = ()  # each flat buffer of stages 1 and 2, over all its ranks
    padded: int = 0  # trainable parameters at stage 3, each filled up to equal shares
    gathered: int = 0  # at stage 3, those that are gathered for each use, frozen ones too
    persistent: int = 0  # at stage 3, those that every rank keeps whole
    persistent_parameters: int = 0  # how many of them there are


class EngineConfig(msgspec.Struct, omit_defaults=True):
    """One DeepSpeed engine: what the user wrote, and what it came to."""

    engine: int
    written: dict[str, Any] = {}
    effective: dict[str, Any] = {}
    kind: str = ""  # class of the engine
    optimizer: str = ""  # class of the ZeRO optimizer
    parameters: int = 0  # elements of trainable parameters, whole model
    parameter_dtype: str = ""
    communication_dtype: str = ""  # in which gradients are to travel
    layout: ParameterLayout = ParameterLayout()
    pipeline_stage: int = -1  # of this rank; -1 without a pipeline
    pipeline_stages: int = 0
    experts_apart: int = 0  # lists of experts in no leaf module of ZeRO-3


class Trailer(msgspec.Struct, omit_defaults=True):
    """The last line; a file without it is of a run that ended badly."""

    reason: str  # EXIT, INTERRUPTED, "disable", "became rank 1 of 2"
    exception: str = ""  # type of the exception that ended the process, if nothing caught it
    steps: int = 0
    events: int = 0
    dropped: int = 0
    counted_only_steps: int = 0  # steps whose collectives are in counters alone
    unmatched_waits: int = 0
    lost_stalls: int = 0  # stalls of a device whose events were never seen complete
    given_up: int = 0  # collectives in flight that were too many to follow to their end
    hooks_ns: int = 0  # estimated host time of dsprof in the training threads (a duration)
    writer_ns: int = 0  # CPU time of the writer thread (a duration)
    budget_spent: bool = False
    failed_hooks: dict[str, str] = {}  # hook -> why it switched itself off


class CollectiveArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of `dsprof.events.Collective`, times relative to the start of the trace."""

    id: int
    group: int
    seq: int
    nbytes: int
    elements: int
    issue_ns: int
    tensors: int = 1  # 0: how much was sent is not known
    dtype: str = ""
    requested: str = ""
    request: int = 0
    is_async: bool = False
    reduce_op: str = ""
    peer: int = -1
    site: int = 0
    step: int = -1
    micro_step: int = 0
    phase: str = ""
    flush: int = 0
    fetch: int = 0
    thread: int = 0
    stream: int = 0
    return_ns: int = 0
    pending_ns: int = 0
    done_ns: int = 0
    wait_ns: int = 0
    waited_ns: int = 0
    blocked_ns: int = 0  # a duration
    waits: int = 0
    on_wire: bool = True
    captured: bool = False
    is_estimated: bool = False
    coalesced: int = 0
    engine: int = -1  # of DeepSpeed, in whose phase it was issued


class SpanArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """Fields shared by phases and annotations."""

    start_ns: int
    end_ns: int
    step: int = -1
    micro_step: int = 0
    engine: int = -1
    stage: int = -1


class StepArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of `dsprof.events.Step`."""

    step: int
    start_ns: int
    end_ns: int
    micro_steps: int = 0
    source: str = ""
    engine: int = -1


class FlushArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of `dsprof.events.Flush`."""

    id: int
    stage: int
    elements: int
    start_ns: int
    end_ns: int
    capacity: int = 0
    nbytes: int = 0
    dtype: str = ""
    parameters: int = 0
    cause: str = "other"
    slot: int = -1
    step: int = -1
    micro_step: int = 0
    phase: str = ""
    library: str = ""
    module: str = ""
    bucket: int = -1  # number of a DDP bucket, in the order in which they get ready
    engine: int = -1  # of DeepSpeed


class FetchArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of `dsprof.events.Fetch`."""

    id: int
    kind: str
    elements: int
    start_ns: int
    end_ns: int
    wait_ns: int = 0  # a duration
    is_recomputation: bool = False
    step: int = -1
    micro_step: int = 0
    phase: str = ""
    library: str = ""
    module: str = ""
    engine: int = -1  # of DeepSpeed


class CopyArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of `dsprof.events.Copy`."""

    what: str
    direction: str
    nbytes: int
    start_ns: int
    end_ns: int
    step: int = -1
    micro_step: int = 0
    phase: str = ""


class StallArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of `dsprof.events.Stall`."""

    kind: str
    stream: int
    collective: int
    duration_ns: int  # a duration
    awaited: int = -1
    step: int = -1
    start_ns: int = 0
    end_ns: int = 0
    issued_ns: int = 0
    bound_ns: int = 0  # a duration
    is_side: bool = False


class DeviceStepArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of `dsprof.events.DeviceStep`."""

    step: int
    start_ns: int
    end_ns: int
    bound_ns: int = 0  # a duration


class MemoryArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of `dsprof.events.MemorySample`."""

    at: str
    time_ns: int
    step: int = -1
    rss_bytes: int = -1
    peak_rss_bytes: int = -1
    host_available_bytes: int = -1
    host_total_bytes: int = -1
    shm_free_bytes: int = -1
    shm_total_bytes: int = -1
    device: dict[str, int] | None = None


class GroupArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """The fields of `dsprof.events.Group`; a later line replaces an earlier one of the same id."""

    id: int
    key: str
    label: str
    name: str = ""
    ranks: list[int] = []
    size: int = 0
    backend: str = ""
    generation: int = 0
    role: str = ""
    is_checked: bool = False


class BucketLayout(msgspec.Struct, omit_defaults=True):
    """How DDP lays out the gradients of one model; a later one holds from `since_ns` on.

    Bucket n is the n-th of `nbytes`; DDP reduces them in this order. What DDP itself measured comes
    from `_get_ddp_logging_data` and is of the last backward before the line was written.
    """

    model: int
    group: int
    nbytes: list[int]
    parameters: list[int] = []  # in each bucket; empty while torch does not tell
    capacity_bytes: int = 0
    is_rebuilt: bool = False  # in the order in which gradients got ready in the first backward
    since_ns: int = 0
    find_unused: bool = False
    gradient_as_bucket_view: bool = False
    buckets_reduced: int = 0
    comm_ns: int = 0  # a duration, as DDP measured it
    overlap_ns: int = 0  # a duration, the same


class ModelArgs(msgspec.Struct, omit_defaults=True):
    """A model as its first forwards of training showed it; a later line replaces an earlier one."""

    model: int
    library: str  # "DDP", "FSDP1", "FSDP2" or "DeepSpeed"
    parameters: int = 0  # elements on all ranks; 0: not known
    trained: int = 0  # of these
    dtype: str = ""  # of most parameters
    autocast: str = ""  # dtype of autocast around forward; what is inside is not seen
    has_experts: bool = False  # not every token meets every parameter
    tokens: list[int] = []  # of each forward; 0: no input is a batch of token numbers


class SiteArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """A calling site: the first frame outside torch, deepspeed and dsprof."""

    id: int
    file: str
    line: int
    function: str = ""


class CounterRow(msgspec.Struct, gc=False, omit_defaults=True):
    """Collectives of one step that are not in the trace one by one."""

    op: str
    group: int
    calls: int
    nbytes: int
    requested: str = ""
    dtype: str = ""
    phase: str = ""
    is_async: bool = False
    blocked_ns: int = 0  # a duration, summed
    on_wire: bool = True


class CounterArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """Counters of one step outside the capture window or after the budget was spent."""

    step: int
    rows: list[CounterRow]


class NoteArgs(msgspec.Struct, gc=False, omit_defaults=True):
    """Something that a reader must know: a hook switched off, a clock step, a fork."""

    text: str
    time_ns: int = 0
    count: int = 1  # how often; a later note of the same text replaces an earlier one


class HeaderEvent(_Event, tag="header"):
    """First line of a file."""

    args: Header


class HooksEvent(_Event, tag="hooks"):
    """Which hooks are in place; again when that changes."""

    args: dict[str, list[HookStatus]]


class EnvironmentEvent(_Event, tag="environment"):
    """The environment; a later one replaces an earlier one."""

    args: EnvSnapshot


class EngineEvent(_Event, tag="engine"):
    """A DeepSpeed engine."""

    args: EngineConfig


class GroupEvent(_Event, tag="group"):
    """Definition of a process group."""

    args: GroupArgs


class BucketLayoutEvent(_Event, tag="buckets"):
    """The gradient buckets of a DDP model."""

    args: BucketLayout


class ModelEvent(_Event, tag="model"):
    """A model that is trained."""

    args: ModelArgs


class SiteEvent(_Event, tag="site"):
    """Definition of a calling site."""

    args: SiteArgs


class CollectiveEvent(_Event, tag="comm"):
    """A finished collective; `name` is the operation on the wire."""

    args: CollectiveArgs


class OpenCollectiveEvent(_Event, tag="open"):
    """A collective still in flight; a `comm` line with the same id replaces it."""

    args: CollectiveArgs


class PhaseEvent(_Event, tag="phase"):
    """forward, backward or step."""

    args: SpanArgs


class AnnotationEvent(_Event, tag="user"):
    """A span named by `dsprof.annotate`."""

    args: SpanArgs


class StepEvent(_Event, tag="step"):
    """One optimizer step."""

    args: StepArgs


class FlushEvent(_Event, tag="flush"):
    """One bucket flush."""

    args: FlushArgs


class FetchEvent(_Event, tag="fetch"):
    """One ZeRO-3 fetch, prefetch or release."""

    args: FetchArgs


class StallEvent(_Event, tag="stall"):
    """How long a stream of a device was held by communication."""

    args: StallArgs


class DeviceStepEvent(_Event, tag="device_step"):
    """One optimizer step as the device went through it."""

    args: DeviceStepArgs


class CopyEvent(_Event, tag="copy"):
    """One copy between host and device."""

    args: CopyArgs


class MemoryEvent(_Event, tag="memory"):
    """One memory sample."""

    args: MemoryArgs


class CounterEvent(_Event, tag="counters"):
    """Counters of one step."""

    args: CounterArgs


class NoteEvent(_Event, tag="note"):
    """A remark."""

    args: NoteArgs


class LaneEvent(_Event, tag="__metadata"):
    """Chrome's own metadata: names of processes and lanes."""

    args: dict[str, str]


class TrailerEvent(_Event, tag="trailer"):
    """Last line of a file that was closed."""

    args: Trailer


Event = (
    HeaderEvent
    | HooksEvent
    | EnvironmentEvent
    | EngineEvent
    | GroupEvent
    | BucketLayoutEvent
    | ModelEvent
    | SiteEvent
    | CollectiveEvent
    | OpenCollectiveEvent
    | PhaseEvent
    | AnnotationEvent
    | StepEvent
    | FlushEvent
    | FetchEvent
    | StallEvent
    | DeviceStepEvent
    | CopyEvent
    | MemoryEvent
    | CounterEvent
    | NoteEvent
    | LaneEvent
    | TrailerEvent
)
