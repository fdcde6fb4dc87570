"""The vocabulary: what hooks record, as flat structs of ints, short strings and each other.

All times are `clock()` of the recording process. No record holds a tensor, a group,
a module or a Work: `Group` and `Scope` are our own small descriptions of them. `gc=False` keeps
the garbage collector from walking a million records; it is safe because none refers to a cycle.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

clock = time.perf_counter_ns

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
"""What process groups are for, and how the report says it; the most special role first."""


class Group(msgspec.Struct, gc=False):
    """A process group, described once when its first collective is seen."""

    id: int
    key: str  # the same string on every member rank: generation, name and ranks
    label: str  # group_desc, mesh dimension or "world"
    name: str
    ranks: list[int]  # global ranks in the order of group ranks
    size: int
    backend: str
    generation: int
    role: str = ""  # one of ROLES, "" while unknown
    is_checked: bool = False  # torch compares each call with those of other ranks before it starts


class Scope(msgspec.Struct, gc=False, frozen=True):
    """Where training stands: replaced as a whole when any part changes, shared by records."""

    step: int
    micro_step: int
    phase: str  # "forward", "backward", "step", "" outside all of them
    engine: int = -1  # number of the DeepSpeed engine whose phase it is
    site: int = 0  # from where the user called what the phase is of, 0 when unknown


class Context(msgspec.Struct, gc=False):
    """On whose behalf a thread communicates: set by hooks of meaning, read by the wire hook.

    Replaced as a whole when any part changes, shared by the records made meanwhile.
    """

    request: int = 0  # id of the call into a library above c10d (deepspeed.comm, DTensor...)
    requested: str = ""  # what that call asked for
    flush: int = 0  # id of the bucket flush
    fetch: int = 0  # id of the parameter fetch
    wire_ops: int = 0  # collectives that the request caused on the wire
    coalesced: int = 0  # number of the batch that a backend launches at once
    site: int = 0  # the calling site of all that it communicates; 0: it has to be looked for


class Collective(msgspec.Struct, gc=False):
    """One operation on the wire (or, with `on_wire` false, one that never reached c10d)."""

    id: int
    op: str
    group: Group
    seq: int  # n-th collective of the group; n-th of (group, peer, direction) for point-to-point
    nbytes: int  # S of nccl-tests: size of the whole array
    elements: int
    tensors: int
    dtype: str
    is_async: bool
    reduce_op: Any  # a name, or None, or what `Recorder.reduce_op_name` turns into one
    peer: int  # root or peer as a global rank, -1 when there is none
    site: int  # index into the interned calling sites, 0 when unknown
    scope: Scope
    context: Context
    thread: int
    issue_ns: int
    return_ns: int
    stream: int = 0
    pending_ns: int = 0  # last seen pending
    done_ns: int = 0  # first seen done; 0: completion was not seen
    wait_ns: int = 0  # start of the first wait
    waited_ns: int = 0  # end of the last wait
    blocked_ns: int = 0  # host time blocked in the sync call and in waits
    waits: int = 0
    on_wire: bool = True
    captured: bool = False  # into a CUDA graph: runs when that is replayed, unseen
    is_estimated: bool = False  # the wait was in C++, and its bounds are known, not itself
    outputs: tuple[int, ...] = ()  # storages by which a functional wait knows it


class Phase(msgspec.Struct, gc=False):
    """A span of the training loop: forward, backward, step, or a name from `annotate`."""

    name: str
    scope: Scope
    start_ns: int
    end_ns: int
    thread: int
    is_annotation: bool = False
    stage: int = -1  # of torch.distributed.pipelining


class Step(msgspec.Struct, gc=False):
    """One optimizer step, from the end of the one before it to its own end."""

    step: int
    micro_steps: int
    start_ns: int
    end_ns: int
    source: str  # "deepspeed", "optimizer" or "user"
    engine: int = -1  # number of the DeepSpeed engine that took it


class Flush(msgspec.Struct, gc=False):
    """One reduction of a gradient bucket, or of the gradients of one FSDP module."""

    id: int
    stage: int  # of ZeRO, -1 for other libraries
    elements: int
    capacity: int  # elements; 0: the bucket has no bound
    nbytes: int
    dtype: str
    parameters: int
    cause: str  # "full", "end of backward" or "other"
    slot: int  # double-buffer slot, -1 when there is none
    scope: Scope
    start_ns: int
    end_ns: int
    thread: int
    library: str = ""  # "FSDP1" or "FSDP2", "" for ZeRO; DDP's are found later by `BucketLayout`
    module: str = ""
    bucket: int = -1


class Fetch(msgspec.Struct, gc=False):
    """One fetch, prefetch or release of parameters, by ZeRO-3 or FSDP."""

    id: int
    kind: str  # "fetch", "prefetch" or "release"
    elements: int
    wait_ns: int  # host time spent waiting for the parameters of this module
    scope: Scope
    start_ns: int
    end_ns: int
    thread: int
    is_recomputation: bool = False  # for a forward that is repeated within backward
    library: str = ""  # "FSDP1" or "FSDP2", "" for ZeRO-3
    module: str = ""


class Copy(msgspec.Struct, gc=False):
    """One copy between the host and a device, as the span of the function that makes it."""

    what: str  # "gradient", "parameter" or "optimizer state"
    direction: str  # "to host", "to device", "both ways" or "within host"
    nbytes: int
    scope: Scope
    start_ns: int
    end_ns: int
    thread: int


class Stall(msgspec.Struct, gc=False):
    """How long a stream of a device was held: by a collective on it, or by waiting for one.

    `duration_ns` is of the device's own clock. `start_ns` and `end_ns` are on the host's, as early
    as they can have been and later by at most `bound_ns`; 0 where they could not be placed there.
    """

    kind: str  # "collective" (runs on the stream), "wait" (for a Work), "event", "synchronize"
    stream: int
    awaited: int  # the stream waited for ("event", "synchronize"); -1: all streams, or unknown
    collective: int  # id of the collective; of the newest on the awaited stream
    scope: Scope
    duration_ns: int
    start_ns: int = 0
    end_ns: int = 0
    issued_ns: int = 0  # when the issuing stream had come to the collective ("wait")
    bound_ns: int = 0
    is_side: bool = False  # not the stream on which steps end


class DeviceStep(msgspec.Struct, gc=False):
    """An optimizer step as the device went through it; times as those of a `Stall`."""

    step: int
    start_ns: int
    end_ns: int
    bound_ns: int


class MemorySample(msgspec.Struct, gc=False):
    """Memory at one moment; -1 where it could not be read."""

    at: str  # "step", "flush" or "writer"
    time_ns: int
    step: int
    rss_bytes: int = -1
    peak_rss_bytes: int = -1
    host_available_bytes: int = -1
    host_total_bytes: int = -1
    shm_free_bytes: int = -1
    shm_total_bytes: int = -1
    device: dict[str, int] | None = None  # chosen counters of torch.cuda.memory_stats()


Scoped = Collective | Phase | Flush | Fetch | Copy | Stall
"""What happened at a place in training, its `scope`."""

OfStep = Step | DeviceStep | MemorySample
"""What tells of a step as a whole."""

Record = Scoped | OfStep
