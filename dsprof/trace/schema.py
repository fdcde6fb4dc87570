"""Each record of a trace, declared once.

Hooks make these structs, the writer writes them, the reader returns them. From what is said here
come the writer's lines (`dsprof.trace.writing`), the reader's columns (`dsprof.trace.columns`) and
the tables of docs/reference/trace-format.md; `python -m dsprof.trace.generate` renews the last two.

A field is one line: its type, its default and a sentence. The type says the unit (`Instant`,
`Duration`), and what stays out of the file (`Live`). A field that has its default is not written.
No record holds a tensor, a group, a module or a Work. `gc=False` keeps the garbage collector from
walking a million records; it is safe because none refers to a cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from dsprof.environment import EnvSnapshot
from dsprof.trace.scope import OUTSIDE, Scope

SCHEMA_VERSION = 1
LARGEST_WORLD = 1 << 20
"""A file that names more ranks is damaged."""
LATE_STEPS = 2
"""A step has all its records, late waits too, this many steps later, if no device is behind."""
MOST_BEHIND_STEPS = 16
"""A device that is further behind is not awaited."""

FILE_PATTERN = "trace*.rank*.json"
"""How native trace files are found in a folder."""

EXIT, INTERRUPTED = "exit", "interrupted"
"""Why a trace ended: its process did, by itself or by Ctrl-C."""

SWITCHED_OFF = "disable"
"""Why a trace ended whose process went on."""

OF_ENVIRONMENT = "dsprof env"
"""Why a trace ended that is of no run: it describes the environment of a rank."""

OF_PROCESS = "process "
"""How the one of `job_keys` begins that all traces of one recording of a process share."""

BECAME, NEW_GROUP = "became rank", "new process group"
"""Why a trace ended whose process went on in another one."""

OF_PLUGIN = "plugin "
"""How the names of hooks begin that other packages bring: what they miss is none of dsprof's."""

ROLES = {
    "data": "data parallel",
    "tensor": "tensor parallel",
    "pipeline": "pipeline parallel",
    "expert": "expert parallel",
    "expert_data": "expert data parallel",
    "sequence": "sequence parallel",
    "context": "context parallel",
    "hpz": "hpZ secondary shards",
    "shard": "shards",
    "replicate": "replicas",
    "model": "model parallel",
}
"""Purposes of process groups, and how the report says it; the most special role first."""


class Mark(Enum):
    """The special part of a field."""

    INSTANT = "ns since the start"
    DURATION = "ns"
    LIVE = "not written"


T = TypeVar("T")
Instant = Annotated[int, Mark.INSTANT]
"""A moment: of `clock()` in the process, in the file since the start of the trace. 0: not seen."""
Duration = Annotated[int, Mark.DURATION]
Live = Annotated[T, Mark.LIVE]
"""Not among the `args` of a line: Chrome's own fields say it, or only the process knows it."""

Number = Annotated[int, "number in this file"]
StepNumber = Annotated[int, "step in which it happened; absent before the first one"]
MicroStep = Annotated[int, "micro-step of the step"]
PhaseName = Annotated[str, "`forward`, `backward`, `step`; empty outside all of them"]
EngineNumber = Annotated[int, "number of the DeepSpeed engine whose phase it was; -1 without one"]
Thread = Annotated[Live[int], "thread that did it, by its identity"]


# -- what hooks record ----------------------------------------------------------------------------


class Collective(msgspec.Struct, gc=False, omit_defaults=True):
    """One operation on the wire (or, with `on_wire` false, one that never reached c10d)."""

    id: Number
    group: Annotated[int, "`id` of the process group"]
    seq: Annotated[int, "n-th collective of the group; n-th of (peer, direction) for send and recv"]
    nbytes: Annotated[int, "S of nccl-tests: the whole array, e.g. all output of an all-gather"]
    elements: Annotated[int, "elements of that array"]
    issue_ns: Annotated[Instant, "call into torch"]
    op: Annotated[Live[str], "operation on the wire: the `name` of the line"] = ""
    tensors: Annotated[int, "tensors on this rank; 0: how much was sent is unknown"] = 1
    dtype: Annotated[str, "type of an element"] = ""
    requested: Annotated[str, "what deepspeed.comm, DTensor or a pipeline was asked for"] = ""
    request: Annotated[int, "number of that call: it may cause several collectives or none"] = 0
    is_async: Annotated[bool, "whether the call returned a Work"] = False
    reduce_op: Annotated[str, "`SUM`, `AVG` and so on"] = ""
    peer: Annotated[int, "root or other side, as a global rank; -1 without one"] = -1
    site: Annotated[int, "`id` of the call site; 0: unknown"] = 0
    step: StepNumber = -1
    micro_step: MicroStep = 0
    phase: PhaseName = ""
    engine: EngineNumber = -1
    flush: Annotated[int, "`id` of the flush that caused it"] = 0
    fetch: Annotated[int, "`id` of the fetch that caused it"] = 0
    coalesced: Annotated[
        int, "number of the batch with which a backend launched it; the last has the wait for all"
    ] = 0
    thread: Annotated[int, "lane (`tid`) of the thread that called"] = 0
    return_ns: Annotated[Instant, "return of the call"] = 0
    stream: Annotated[int, "stream of a device on which it was issued"] = 0
    pending_ns: Annotated[Instant, "last seen pending: completion came later"] = 0
    done_ns: Annotated[Instant, "first seen done: completion came before"] = 0
    wait_ns: Annotated[Instant, "start of the first wait"] = 0
    waited_ns: Annotated[Instant, "end of the last wait"] = 0
    blocked_ns: Annotated[
        Duration, "host time blocked: in waits; of a sync call on the host, from its issue on"
    ] = 0
    waits: Annotated[int, "number of waits"] = 0
    on_wire: Annotated[bool, "`false` for a request that never reached c10d"] = True
    captured: Annotated[bool, "it went into a CUDA graph, whose replays are not recorded"] = False
    is_estimated: Annotated[
        bool,
        "the wait was in C++ (DDP's reducer): `blocked_ns` is an upper bound, and of several waited"
        " for together the last one has it",
    ] = False
    outputs: Annotated[Live[tuple[int, ...]], "storages by which a functional wait knows it"] = ()


class Phase(msgspec.Struct, gc=False, omit_defaults=True):
    """A span of training: forward, backward, step, generate, or one named by `annotate`."""

    start_ns: Annotated[Instant, "start"]
    end_ns: Annotated[Instant, "end"]
    step: StepNumber = -1
    micro_step: MicroStep = 0
    engine: EngineNumber = -1
    stage: Annotated[int, "stage of torch.distributed.pipelining; -1 without one"] = -1
    name: Annotated[Live[str], "the `name` of the line"] = ""
    thread: Thread = 0
    is_annotation: Annotated[Live[bool], "whether `annotate` named it: `cat` is `user`"] = False
    scope: Annotated[Live[Scope], "what to return to when a phase inside ends"] = OUTSIDE


class Step(msgspec.Struct, gc=False, omit_defaults=True):
    """One optimizer step, from the end of the one before it to its own end."""

    step: Annotated[int, "number, counted over all engines of a process"]
    start_ns: Annotated[Instant, "end of the step before"]
    end_ns: Annotated[Instant, "end"]
    micro_steps: Annotated[int, "micro-steps in it"] = 0
    source: Annotated[str, "who marks steps: `deepspeed`, `optimizer` or `user`"] = ""
    engine: Annotated[int, "number of the DeepSpeed engine that took it; -1 without one"] = -1
    taken_before: Annotated[
        int, "training steps before it, over all restarts; -1: unknown; first step only"
    ] = -1


class Flush(msgspec.Struct, gc=False, omit_defaults=True):
    """One reduction of a gradient bucket, or of the gradients of one FSDP module."""

    id: Number
    stage: Annotated[int, "stage of ZeRO, -1 for other libraries"]
    elements: Annotated[int, "elements reduced"]
    start_ns: Annotated[Instant, "start"]
    end_ns: Annotated[Instant, "end"]
    capacity: Annotated[int, "elements the bucket holds; 0: no bound"] = 0
    nbytes: Annotated[int, "bytes reduced"] = 0
    dtype: Annotated[str, "type of an element"] = ""
    parameters: Annotated[int, "parameters in it"] = 0
    cause: Annotated[str, "`full`, `end of backward`, `end of module` or `other`"] = "other"
    slot: Annotated[int, "slot of the double buffer, -1 without one"] = -1
    step: StepNumber = -1
    micro_step: MicroStep = 0
    phase: PhaseName = ""
    library: Annotated[str, "`FSDP1` or `FSDP2`, empty for ZeRO"] = ""
    module: Annotated[str, "module of FSDP"] = ""
    bucket: Annotated[int, "number of a DDP bucket, in the order in which they get ready"] = -1
    engine: EngineNumber = -1
    thread: Thread = 0


class Fetch(msgspec.Struct, gc=False, omit_defaults=True):
    """One fetch, prefetch or release of parameters, by ZeRO-3 or FSDP."""

    id: Number
    kind: Annotated[str, "`fetch`, `prefetch` or `release` (all released between two waits)"]
    elements: Annotated[
        int,
        "whole parameters: DeepSpeed's count of this rank's share times the ranks that share it, or"
        " what was in flight where parameters are shared by different numbers of ranks",
    ]
    start_ns: Annotated[Instant, "start"]
    end_ns: Annotated[Instant, "end"]
    wait_ns: Annotated[Duration, "host time blocked for the parameters of this module"] = 0
    is_recomputation: Annotated[bool, "for a forward that is repeated within backward"] = False
    step: StepNumber = -1
    micro_step: MicroStep = 0
    phase: PhaseName = ""
    library: Annotated[str, "`FSDP1` or `FSDP2`, empty for ZeRO-3"] = ""
    module: Annotated[str, "module of FSDP"] = ""
    engine: EngineNumber = -1
    thread: Thread = 0


class Copy(msgspec.Struct, gc=False, omit_defaults=True):
    """One copy between the host and a device, as the span of the function that makes it."""

    what: Annotated[str, "`gradient`, `parameter` or `optimizer state`"]
    direction: Annotated[str, "`to host`, `to device`, `both ways` or `within host`"]
    nbytes: Annotated[int, "bytes copied"]
    start_ns: Annotated[Instant, "start"]
    end_ns: Annotated[Instant, "end"]
    step: StepNumber = -1
    micro_step: MicroStep = 0
    phase: PhaseName = ""
    thread: Thread = 0


class Stall(msgspec.Struct, gc=False, omit_defaults=True):
    """How long communication blocked a stream of a device, as known at a later step end."""

    kind: Annotated[
        str,
        "`collective`: it ran on this stream; `wait`: the stream waited for its Work; `event`: the"
        " stream waited for another one; `synchronize`: the host did, and the current stream had"
        " nothing to do",
    ]
    stream: Annotated[int, "stream that was blocked, by torch's `stream_id`"]
    collective: Annotated[int, "`id` of the collective; else of the newest on the awaited stream"]
    duration_ns: Annotated[Duration, "how long, on the device's clock"]
    awaited: Annotated[int, "for `event` and `synchronize` the awaited stream; -1: all"] = -1
    step: Annotated[int, "step in which the host got there"] = -1
    start_ns: Annotated[Instant, "earliest place on the host's clock; 0: not found"] = 0
    end_ns: Annotated[Instant, "end in that place"] = 0
    issued_ns: Annotated[Instant, "for `wait`, when the issuing stream came to the collective"] = 0
    bound_ns: Annotated[Duration, "by how much later than that place it may have been"] = 0
    is_side: Annotated[bool, "steps do not end on this stream"] = False


class DeviceStep(msgspec.Struct, gc=False, omit_defaults=True):
    """One optimizer step as the device went through it."""

    step: Annotated[int, "number of the step"]
    start_ns: Annotated[Instant, "start, on the host's clock"]
    end_ns: Annotated[Instant, "end, on the host's clock"]
    bound_ns: Annotated[Duration, "by how much later it may have been"] = 0


class MemorySample(msgspec.Struct, gc=False, omit_defaults=True):
    """Memory at one moment; -1 where it could not be read."""

    at: Annotated[str, "`step`, `flush` or `writer`"]
    time_ns: Annotated[Instant, "time of the reading; steps within a second share one"]
    step: StepNumber = -1
    rss_bytes: Annotated[int, "resident memory of the process"] = -1
    peak_rss_bytes: Annotated[int, "the most it had by then"] = -1
    host_available_bytes: Annotated[int, "free memory of the host"] = -1
    host_total_bytes: Annotated[int, "memory of the host"] = -1
    shm_free_bytes: Annotated[int, "free in /dev/shm"] = -1
    shm_total_bytes: Annotated[int, "size of /dev/shm"] = -1
    device: Annotated[
        dict[str, int] | None,
        "counters of `torch.cuda.memory_stats()`, and `device_total_bytes`, the device's memory",
    ] = None


class Heartbeat(msgspec.Struct, gc=False, omit_defaults=True):
    """A sign of life of a process in which nothing else is recorded."""

    time_ns: Annotated[Instant, "when the writer thread wrote it"]
    step: Annotated[int, "last step that ended; absent before the first one"] = -1
    in_flight: Annotated[int, "collectives in flight"] = 0
    oldest_ns: Annotated[Duration, "age of the oldest of them"] = 0


class GroupEnd(msgspec.Struct, gc=False, omit_defaults=True):
    """The program destroyed its default process group; records before it come before the line."""

    time_ns: Annotated[Instant, "when; 0: it failed, or has made another group since"] = 0


# -- what hooks describe --------------------------------------------------------------------------


class Group(msgspec.Struct, gc=False, omit_defaults=True):
    """A process group; a later line replaces an earlier one of the same `id`."""

    id: Number
    key: Annotated[str, "the same on every member rank: generation, name, ranks"]
    label: Annotated[str, "`group_desc`, mesh dimension or `world`"]
    name: Annotated[str, "torch's name of it"] = ""
    ranks: Annotated[list[int], "global ranks in the order of group ranks"] = []
    size: Annotated[int, "number of ranks"] = 0
    backend: Annotated[str, "`nccl`, `gloo` and so on"] = ""
    generation: Annotated[int, "number of the initialisation of torch.distributed"] = 0
    role: Annotated[str, "`data`, `tensor`, `pipeline`, `expert`...; empty: unknown"] = ""
    is_checked: Annotated[bool, "torch compares each call with other ranks first (DETAIL)"] = False


class BucketLayout(msgspec.Struct, omit_defaults=True):
    """How DDP lays out the gradients of one model; a later one holds from `since_ns` on.

    Bucket n is the n-th of `nbytes`; DDP reduces them in this order. Bytes, options and
    the hook are those that it logs (`_get_ddp_logging_data`).
    """

    model: Annotated[int, "number of the model"]
    group: Annotated[int, "`id` of the process group"]
    nbytes: Annotated[list[int], "bytes of each bucket, in the order of reduction"]
    parameters: Annotated[list[int], "parameters in each bucket; empty while unknown"] = []
    capacity_bytes: Annotated[int, "most bytes of a bucket"] = 0
    is_rebuilt: Annotated[bool, "in the order in which gradients got ready in backward"] = False
    since_ns: Annotated[Instant, "from when on it holds"] = 0
    gradient_as_bucket_view: Annotated[bool, "the option of DDP"] = False
    buckets_reduced: Annotated[int, "buckets that DDP counted"] = 0
    comm_hook: Annotated[str, "communication hook that sends the gradients"] = ""


class Model(msgspec.Struct, omit_defaults=True):
    """A model as its first forwards of training showed it; a later line replaces an earlier one."""

    model: Annotated[int, "number of the model"]
    library: Annotated[str, "`DDP`, `FSDP1`, `FSDP2` or `DeepSpeed`"]
    parameters: Annotated[int, "elements on all ranks; 0: unknown"] = 0
    trained: Annotated[int, "of these, those that are trained"] = 0
    dtype: Annotated[str, "dtype of most parameters"] = ""
    autocast: Annotated[str, "dtype of autocast around forward; inside is unknown"] = ""
    has_experts: Annotated[bool, "not every token meets every parameter"] = False
    tokens: Annotated[list[int], "tokens of each forward; 0: no input is token IDs"] = []


class Site(msgspec.Struct, gc=False, omit_defaults=True):
    """A call site: the first frame outside torch, deepspeed and dsprof."""

    id: Number
    file: Annotated[str, "path of the source"]
    line: Annotated[int, "line in it"]
    function: Annotated[str, "function around it"] = ""


class Note(msgspec.Struct, gc=False, omit_defaults=True):
    """A remark: a hook switched off, a clock step, a fork. One of the same text replaces it."""

    text: Annotated[str, "the remark"]
    time_ns: Annotated[Instant, "when"] = 0
    count: Annotated[int, "how often by then"] = 1
    hang_ranks: Annotated[tuple[int, ...] | None, "of a hang's verdict in the run: those named"] = (
        None
    )


class HookStatus(msgspec.Struct, omit_defaults=True):
    """Whether a hook is in place; before its module is imported it is not."""

    name: Annotated[str, "the hook"]
    module: Annotated[str, "module that it watches"] = ""
    installed: Annotated[bool, "whether it is in place"] = False
    why: Annotated[str, "what went wrong when its module was imported"] = ""
    lost: Annotated[list[str], "what it does not record: this release lacks watched names"] = []


class ParameterLayout(msgspec.Struct, omit_defaults=True, frozen=True):
    """How ZeRO lays out the parameters of one rank's model, in elements, padding included."""

    flat: Annotated[tuple[int, ...], "each flat buffer of stages 1 and 2, over all its ranks"] = ()
    padded: Annotated[int, "trained parameters at stage 3, each filled to equal shares"] = 0
    gathered: Annotated[int, "at stage 3, those gathered for each use, frozen ones too"] = 0
    persistent: Annotated[int, "at stage 3, those that every rank keeps whole"] = 0
    persistent_parameters: Annotated[int, "how many of them there are"] = 0


class EngineConfig(msgspec.Struct, omit_defaults=True):
    """One DeepSpeed engine: its configuration as written and in force."""

    engine: Annotated[int, "number of the engine"]
    written: Annotated[dict[str, Any], "configuration as written"] = {}
    effective: Annotated[dict[str, Any], "configuration in force"] = {}
    kind: Annotated[str, "class of the engine"] = ""
    optimizer: Annotated[str, "class of the ZeRO optimizer"] = ""
    parameters: Annotated[int, "elements of trained parameters, whole model"] = 0
    parameter_dtype: Annotated[str, "dtype of parameters"] = ""
    communication_dtype: Annotated[str, "dtype in which gradients are to be sent"] = ""
    layout: Annotated[ParameterLayout, "how parameters are laid out"] = ParameterLayout()
    pipeline_stages: Annotated[int, "stages of the pipeline"] = 0
    experts_apart: Annotated[int, "lists of experts in no leaf module of ZeRO-3"] = 0
    digests: Annotated[dict[str, str], "of redacted values in `written`, by dotted key"] = {}


# -- what the writer adds -------------------------------------------------------------------------


class CounterRow(msgspec.Struct, gc=False, omit_defaults=True):
    """Collectives of one step that are only counted."""

    op: Annotated[str, "operation"]
    group: Annotated[int, "`id` of the process group"]
    calls: Annotated[int, "how many"]
    nbytes: Annotated[int, "their bytes"]
    requested: Annotated[str, "as of a collective"] = ""
    dtype: Annotated[str, "as of a collective"] = ""
    phase: PhaseName = ""
    is_async: Annotated[bool, "as of a collective"] = False
    blocked_ns: Annotated[Duration, "host time blocked, summed"] = 0
    on_wire: Annotated[bool, "as of a collective"] = True


class StepCounters(msgspec.Struct, gc=False, omit_defaults=True):
    """Collectives of one step that are only counted."""

    step: Annotated[int, "number of the step"]
    rows: Annotated[list[CounterRow], "a row for each kind of collective"]


class OpTotals(msgspec.Struct, gc=False, array_like=True):
    """Collectives of one operation, summed."""

    calls: Annotated[int, "how many"] = 0
    nbytes: Annotated[int, "their bytes"] = 0
    blocked_ns: Annotated[Duration, "host time blocked"] = 0


SCOPES = ("forward", "backward", "step")
"""Phases of which a step has sums."""

AT_WORK = ("forward", "step")
"""Phases in which no other thread communicates for the step, as the autograd engine's do."""


class StepTotals(msgspec.Struct, gc=False, omit_defaults=True):
    """One step of a recording with `mode: always` in sums; its details may be gone."""

    step: Annotated[int, "number of the step"]
    start_ns: Annotated[Instant, "end of the step before"]
    end_ns: Annotated[Instant, "end"]
    phase_ns: Annotated[dict[str, int], Mark.DURATION, "time in each phase, by name"] = {}
    stalled_ns: Annotated[Duration, "time that streams of a device waited for communication"] = 0
    ops: Annotated[dict[str, OpTotals], "sums of each operation: calls, bytes, time blocked"] = {}
    rss_bytes: Annotated[int, "resident memory of the process; -1: unknown"] = -1
    device_bytes: Annotated[int, "memory allocated on the device; -1: unknown"] = -1


class RollUp(msgspec.Struct, gc=False, omit_defaults=True):
    """The steps that ended in one span of time, in sums; until one ends, all of the span."""

    begin_s: Annotated[int, "start on the wall clock, in s since 1970: a multiple of `length_s`"]
    length_s: Annotated[int, "length of the span: 10, 300 or 3600"]
    first_step: Annotated[int, "number of the first step that ended in it; 0 without steps"]
    steps: Annotated[int, "how many"] = 0
    total_ns: Annotated[Duration, "their times, summed; without steps, time recorded"] = 0
    fastest_ns: Annotated[Duration, "time of the fastest"] = 0
    slowest_ns: Annotated[Duration, "time of the slowest"] = 0
    slowest_step: Annotated[int, "its number"] = -1
    blocked_ns: Annotated[
        Duration, "host time blocked in collectives, of all threads but those beside the training"
    ] = 0
    stalled_ns: Annotated[Duration, "time that streams waited for communication, summed"] = 0
    calls: Annotated[int, "collectives"] = 0
    nbytes: Annotated[int, "their bytes"] = 0
    rss_bytes: Annotated[int, "peak resident memory of the process; -1: unknown"] = -1
    device_bytes: Annotated[int, "peak memory allocated on the device; -1: unknown"] = -1
    phase_ns: Annotated[
        dict[str, int], Mark.DURATION, "time in each phase, by name; from 300 s on"
    ] = {}
    ops: Annotated[dict[str, OpTotals], "sums of each operation; from 300 s on"] = {}
    bins: Annotated[
        dict[int, int], "steps by time, bin n from 1.02^n ns to 1.02^(n+1) ns; from 300 s on"
    ] = {}
    lost: Annotated[int, "steps in between that the disk refused"] = 0
    until_ns: Annotated[Instant, "without steps: until when it was recorded"] = 0

    @property
    def end(self) -> int:
        """The step after its last one."""
        return self.first_step + self.steps + self.lost

    @property
    def span(self) -> tuple[int, int]:
        """Length and begin."""
        return self.length_s, self.begin_s

    @property
    def waited_ns(self) -> int:
        """Time without progress: of the host or, where streams wait in its place, of these.

        Sums over threads that wait at the same time may exceed it, but not the time of the steps.
        """
        return min(max(self.blocked_ns, self.stalled_ns), self.total_ns)


class Kept(msgspec.Struct, gc=False, omit_defaults=True):
    """A step whose details a recording with `mode: always` keeps."""

    step: Annotated[int, "number of the step"]
    why: Annotated[str, "`first`, `capture`, `change`, `alarm`, `slow` or `sample`"]
    times: Annotated[float, "its time as a multiple of the usual time; 0: not compared"] = 0.0
    cause: Annotated[str, "of `capture` and `alarm`: what happened, and on which rank"] = ""


class Segment(msgspec.Struct, gc=False, omit_defaults=True):
    """The start of a file of details; two such files are written in turn."""

    number: Annotated[int, "number of the file, counted from 0"]
    step: Annotated[int, "last step that ended before it"] = -1


class StepIndex(msgspec.Struct, omit_defaults=True):
    """Where steps are in the file, about every MiB; the last one counts."""

    at_bytes: Annotated[list[int], "offsets in the file at which a line begins"] = []
    steps: Annotated[
        list[int],
        "step of the record before each offset; earlier records are at most `late_steps` newer",
    ] = []
    ended_ns: Annotated[
        list[int], "end of the newest step before each offset, in ns since the start of the trace"
    ] = []
    others: Annotated[
        list[tuple[int, int]],
        "begin and end of lines that belong to no step but that others refer to",
    ] = []
    late_steps: Annotated[int, "records are of at most so many steps before the newest one"] = (
        LATE_STEPS
    )


class Header(msgspec.Struct, omit_defaults=True):
    """Who wrote the file, in which run, with which clock."""

    schema_version: Annotated[int, "version of the format"]
    run_key: Annotated[str, "equal on all ranks: launcher's id, master address and port, restarts"]
    rank: Annotated[int, "global rank"]
    world_size: Annotated[int, "number of ranks"]
    host: Annotated[str, "name of the host"]
    pid: Annotated[int, "number of the process"]
    started_epoch_ns: Annotated[int, "start of the trace on the wall clock"]
    started_monotonic_ns: Annotated[int, "the same on the monotonic clock of the host"]
    boot_id: Annotated[str, "with `host`: who shares the monotonic clock"] = ""
    local_rank: Annotated[int, "rank on the host; -1: unknown"] = -1
    backend: Annotated[str, "backend of the default group"] = ""
    device: Annotated[str, "what the run computes on"] = "cpu"
    versions: Annotated[dict[str, str], "dsprof, torch, deepspeed"] = {}
    config: Annotated[dict[str, Any], "dsprof's configuration"] = {}
    anonymized: Annotated[bool, "hosts, users and paths are replaced"] = False
    state_file: Annotated[str, "name of its live state in memory; empty: none, or anonymized"] = ""
    job_keys: Annotated[
        list[str], "epochs of one job share a key; another job may share one with `perhaps`"
    ] = []
    restarts: Annotated[int, "starts of the workers before this one; -1: unknown"] = -1
    pid_namespace: Annotated[int, "inode of the PID namespace of `pid`; 0: unknown"] = 0


class Trailer(msgspec.Struct, omit_defaults=True):
    """The last line; a file without it is of a run that crashed or was killed."""

    reason: Annotated[
        str,
        "`exit`, `interrupted`, `disable`, `became rank 1 of 2`, `new process group`, `dsprof env`",
    ]
    exception: Annotated[str, "type of the uncaught exception that ended the process"] = ""
    exception_ns: Annotated[
        int, "when it ended the program, in ns since the start of the trace; 0: unknown"
    ] = 0
    raised_at: Annotated[str, "`file:line function` of the user's innermost call in it"] = ""
    lost: Annotated[str, "`timeout` or `connection`, if its message speaks of one"] = ""
    oom_kills: Annotated[int, "processes of its cgroup killed for lack of memory meanwhile"] = 0
    steps: Annotated[int, "steps recorded"] = 0
    events: Annotated[int, "lines written"] = 0
    dropped: Annotated[int, "records lost"] = 0
    counted_only_steps: Annotated[int, "steps whose collectives are only counted"] = 0
    unmatched_waits: Annotated[int, "waits matched to no collective"] = 0
    lost_stalls: Annotated[int, "device stalls without a recorded end"] = 0
    given_up: Annotated[int, "collectives not followed: too many others were in flight"] = 0
    hooks_ns: Annotated[Duration, "estimated host time of dsprof in the training threads"] = 0
    writer_ns: Annotated[Duration, "CPU time of the writer thread"] = 0
    budget_spent: Annotated[bool, "the file reached its budget"] = False
    disk_error: Annotated[str, "why the disk refused data, the last time"] = ""
    lost_steps: Annotated[int, "steps that are missing or incomplete because of that"] = 0
    failed_hooks: Annotated[dict[str, str], "hook -> why it switched itself off"] = {}


def is_of_environment(trailer: Trailer | None) -> bool:
    """Say whether `dsprof env` wrote a trace."""
    return trailer is not None and trailer.reason == OF_ENVIRONMENT


# -- the lines ------------------------------------------------------------------------------------

Record = (
    Collective | Phase | Step | Flush | Fetch | Copy | Stall | DeviceStep | MemorySample | Heartbeat
)
"""A record with a line of its own, by a hook or by the writer."""


class Lane(Enum):
    """Where Perfetto shows a record."""

    NONE = "nowhere"
    MOMENT = "at its `time_ns`"
    STEPS = "the lane of steps"
    THREAD = "the lane of its thread"
    STREAM = "the lane of its stream"
    DEVICE = "the lane of steps on the device"


def _unnamed(record: Any) -> str:
    return ""


class Kind(NamedTuple):
    """A kind of line: its `cat`, what its `args` are, and when it is written."""

    cat: str
    record: Any
    when: str
    held: str = ""  # attribute of `RankTrace`; "" where the reader treats it by hand
    key: str = ""  # field by which that is a dict; a later line replaces an earlier one
    lane: Lane = Lane.NONE
    label: Callable[[Any], str] = _unnamed  # the `name` of the line
    what: str = ""  # where the first sentence of the record does not say it


COMM, OPEN, PHASE, FLUSH = "comm", "open", "phase", "flush"
USER, HOOKS, INDEX = "user", "hooks", "index"
METADATA = "__metadata"

_LATER = "at a later step end"

KINDS: Final = (
    Kind("header", Header, "first"),
    Kind(
        "environment",
        EnvSnapshot,
        "start, and after the first step if something is new",
        "environment",
        what="variables, effective values, NCCL's configuration files, versions, limits;"
        " `accelerators` and `adapters` of the machine, `machine` (kernel, architecture, driver,"
        " modules, CPUs of this process and their clock, Ethernet), `libraries` of communication"
        " that are loaded, `precision`: which dtypes are multiplied fast, and whether fp32 uses"
        " TF32; `digests` of redacted values, in hexadecimal: id of the key, hyphen, digest"
        " ([privacy](../background/privacy.md))",
    ),
    Kind(
        HOOKS,
        dict[str, list[HookStatus]],
        "start, and when that changes",
        what="which hooks are in place, and why not",
    ),
    Kind("engine", EngineConfig, "first forward or backward of the engine", "engines", "engine"),
    Kind(
        "group",
        Group,
        "before its first collective; again when its role becomes known",
        "groups",
        "id",
        label=attrgetter("label"),
    ),
    Kind("buckets", BucketLayout, "when DDP has logged them, and when it has counted", "layouts"),
    Kind("model", Model, "first forward of training, and after the fourth", "models", "model"),
    Kind("site", Site, "before the first collective from there", "sites", "id"),
    Kind(
        COMM,
        Collective,
        "when it was waited for or seen complete",
        what="a collective that has ended",
    ),
    Kind(
        OPEN,
        Collective,
        "after 0.1 s (5 s where collectives are only counted), and at the end",
        what="a collective in flight; a later `comm` with the same `id` replaces it",
    ),
    Kind(
        PHASE,
        Phase,
        "at its end",
        what="forward, backward, step, generate, or an instruction of a pipeline's schedule",
    ),
    Kind(USER, Phase, "at its end", what="a span named by `dsprof.annotate`"),
    Kind(
        "step",
        Step,
        "at its end; steps follow each other without a gap",
        "steps",
        lane=Lane.STEPS,
        label=lambda step: f"step {step.step}",
    ),
    Kind(
        FLUSH,
        Flush,
        "at its end",
        "flushes",
        lane=Lane.THREAD,
        label=lambda flush: f"flush: {flush.cause}",
    ),
    Kind(
        "fetch",
        Fetch,
        "at its end",
        "fetches",
        lane=Lane.THREAD,
        label=attrgetter("kind"),
    ),
    Kind("stall", Stall, _LATER, "stalls", lane=Lane.STREAM, label=attrgetter("kind")),
    Kind(
        "device_step",
        DeviceStep,
        _LATER,
        "device_steps",
        lane=Lane.DEVICE,
        label=lambda step: f"step {step.step}",
    ),
    Kind(
        "copy",
        Copy,
        "at its end",
        "copies",
        lane=Lane.THREAD,
        label=lambda copy: f"copy {copy.what} {copy.direction}",
    ),
    Kind(
        "memory",
        MemorySample,
        "start, step ends, flushes, end",
        "memory",
        lane=Lane.MOMENT,
        label=lambda sample: "memory",
    ),
    Kind(
        "heartbeat",
        Heartbeat,
        "after 1 s of silence, then at intervals that grow from 1 s to 5 s",
        "heartbeats",
        lane=Lane.MOMENT,
        label=lambda beat: "heartbeat",
    ),
    Kind("group_end", GroupEnd, "soon after the default process group ended", "group_ends"),
    Kind("counters", StepCounters, "outside the window, after the budget", "counters"),
    Kind("segment", Segment, "`mode: always`: first in a file of details"),
    Kind("kept", Kept, "`mode: always`: before the lines of the step", "kept", "step"),
    Kind("totals", StepTotals, "`mode: always`: 3 to 17 steps later", "totals", "step"),
    Kind(
        "rollup",
        RollUp,
        "`mode: always`: once the span is over, and where a segment begins",
        "rollups",
        "span",
    ),
    Kind("note", Note, "any time", "notes"),
    Kind(
        METADATA,
        dict[str, str],
        "before the first event of a lane",
        what="names of lanes, for Perfetto",
    ),
    Kind(INDEX, StepIndex, "every 16 MiB and before the trailer, except with `mode: always`"),
    Kind("trailer", Trailer, "last", "trailer"),
)
"""All kinds of lines; a reader passes over others."""
