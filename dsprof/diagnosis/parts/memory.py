"""Memory of hosts and devices."""

from __future__ import annotations

import msgspec


class RankMemory(msgspec.Struct):
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


class StackRow(msgspec.Struct):
    """Memory in use that a call stack allocated; calls from the outermost to the innermost."""

    calls: list[str]  # "file:line function"; [] where none was recorded
    bytes: int


class SnapshotRow(msgspec.Struct):
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
