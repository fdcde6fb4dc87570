"""Which run a diagnosis is of, its headline, and how far it can be trusted."""

from __future__ import annotations

from typing import Any

import msgspec

from dsprof.findings.finding import Range, Severity

MOST_SOURCES = 256
"""The number of files read that a diagnosis lists at most."""


class RunInfo(msgspec.Struct):
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


class HookNote(msgspec.Struct):
    """A hook that was not in place, or that switched itself off."""

    name: str
    why: str
    ranks: list[int] = []


class Quality(msgspec.Struct):
    """How far the figures can be trusted."""

    missing_ranks: list[int] = []
    unclean_ranks: list[int] = []  # their files have no trailer
    left_ranks: list[int] = []  # neither have theirs, but they had destroyed their process group
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


class Headline(msgspec.Struct):
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


class ThresholdInfo(msgspec.Struct):
    """A threshold in force."""

    rule: str
    name: str
    value: float | int | str | bool | list[float | int | str | bool | None] | None
    is_default: bool = True


class RuleInfo(msgspec.Struct):
    """A rule that judged the run: what a page says of it beside its findings."""

    rule: str
    title: str  # when it passes
    why: str  # it matters
    category: str
    package: str = ""  # which brings it as a plugin; "": dsprof
    page: str = ""  # that explains it, in Markdown; of rules with problems or remarks only
    judges_end: bool = False  # how a run ended: while it lasts, it says nothing
