"""The result of `dsprof.load`: a run as typed rows, read when they are used.

Times are nanoseconds on one clock for all ranks, from the start of the first rank's trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dsprof.analysis.rank.device_times import on_device_clock
from dsprof.analysis.rank.record_columns import int_column
from dsprof.analysis.summarise import align_run, draw_steps
from dsprof.analysis.summary import RankClock, RunSummary
from dsprof.api.rank_steps import RankStep, knows_blocked, rank_steps
from dsprof.api.rows import Columns, Rows
from dsprof.diagnosis.build import diagnosis_of, summarise_all
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.steps import StepParts
from dsprof.files.redaction import RedactedWords, map_text, redact_text
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Finding, Status
from dsprof.trace.columns import IntArray
from dsprof.trace.device_counters import ALLOCATED, RESERVED
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import RunFiles, find_run, goes_on, read_run
from dsprof.trace.schema import Flush, MemorySample
from dsprof.trace.selection import Selection

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class CollectiveCall(msgspec.Struct, frozen=True, kw_only=True):
    """A collective as one rank called it; None: not recorded."""

    rank: int
    step: int | None
    phase: str  # of training, such as "forward"; "" outside
    op: str  # operation, such as "all_gather_into_tensor"
    requested: str  # what deepspeed.comm, DTensor or a pipeline was asked for
    group: str  # name of the process group, as reports show it
    group_key: str  # the same on all members; with `seq` it names the collective
    group_size: int | None  # ranks in the group
    seq: int  # number of the collective in its group
    peer: int | None  # root or other side
    size_bytes: int | None
    dtype: str
    is_async: bool
    on_wire: bool  # false: a request that never reached torch's c10d
    start_ns: int | None  # when it was called
    end_ns: int | None  # when it was complete; if that is unknown, when a wait for it returned
    blocked_ns: int | None  # how long it blocked the host, or a stream of the device
    site: str  # file:line of the call


class FlushCall(msgspec.Struct, frozen=True, kw_only=True):
    """One reduction of a gradient bucket, or of the gradients of one FSDP module."""

    rank: int
    step: int | None
    phase: str  # of training
    cause: str  # "full", "end of backward", "end of module" or "other"
    stage: int | None  # of ZeRO
    library: str  # "FSDP1" or "FSDP2"; "" for others
    module: str  # of FSDP
    bucket: int | None  # number of the DDP bucket, in the order in which they get ready
    start_ns: int
    end_ns: int
    elements: int  # number of elements reduced
    capacity: int | None  # elements that the bucket can hold
    size_bytes: int
    dtype: str
    parameters: int  # number of parameters in it


class MemoryReading(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one rank at one moment."""

    rank: int
    step: int | None
    at: str  # "step", "flush" or "writer"
    time_ns: int
    rss_bytes: int | None  # memory of the process
    host_available_bytes: int | None
    allocated_bytes: int | None  # on the device
    reserved_bytes: int | None  # on the device, by torch's allocator


class EnvironmentFact(msgspec.Struct, frozen=True, kw_only=True):
    """A variable, version, device or limit."""

    section: str  # heading in the report
    name: str
    value: str
    ranks: tuple[int, ...] = ()  # (): the value is the same on all ranks


class LoadedRun(RunSummary):
    """A run; `run[Steps]` and so on are its aggregates (docs/reference/plugins.md)."""

    def __init__(self, summary: RunSummary, files: RunFiles) -> None:
        super().__init__(summary._parts.values(), summary.failures)
        self.files = files

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis that the report shows."""
        made = diagnosis_of(self, {}, partial(draw_steps, self.files))
        return map_text(made, redact_text)  # type: ignore[no-any-return]

    @property
    def findings(self) -> Rows[Finding]:
        """The findings of all rules: the most severe first, of these the one that saves most."""
        return Rows.of(Finding, lambda: self.diagnosis.findings)

    @property
    def steps(self) -> Rows[StepParts]:
        """Each step split into its parts, mean over the ranks; of a long run a sample of steps."""
        return Rows.of(StepParts, lambda: self.diagnosis.steps.rows)

    @property
    def rank_steps(self) -> Rows[RankStep]:
        """Each step of each rank in sums; with `mode: always` steps without details, too."""
        return Rows(RankStep, lambda: rank_steps(self.files))

    @property
    def collectives(self) -> Rows[CollectiveCall]:
        """Each collective of each rank."""
        return Rows(CollectiveCall, lambda: self._each_rank(_collectives))

    @property
    def flushes(self) -> Rows[FlushCall]:
        """Each flush of each rank."""
        return Rows(FlushCall, lambda: self._each_rank(_flushes))

    @property
    def memory(self) -> Rows[MemoryReading]:
        """Memory of each rank over time."""
        return Rows(MemoryReading, lambda: self._each_rank(_memory))

    @property
    def environment(self) -> Rows[EnvironmentFact]:
        """Variables, versions, devices and limits of the run."""
        return Rows.of(EnvironmentFact, lambda: _environment(self.diagnosis))

    def unfinished(self) -> str:
        """Say that the run goes on, or of which ranks the record is short; "" if it is whole."""
        quality, run = self.diagnosis.quality, self.diagnosis.run
        texts = []
        if run.is_running:
            texts.append(f"still running; {fmt.plural(run.steps, 'step')} so far")
        if quality.unclean_ranks:
            texts.append(f"not finished: {fmt.named_ranks(quality.unclean_ranks)}")
        if quality.missing_ranks:
            texts.append(f"no trace file: {fmt.named_ranks(quality.missing_ranks)}")
        return "; ".join(texts)

    def plot(self, what: str = "steps") -> Figure:
        """Return an interactive figure: `steps`, `ranks`, `memory` or `bandwidth`.

        Raises:
            ValueError: there is no such figure.
        """
        from dsprof.reports.html.plots import PLOTS

        if what not in PLOTS:
            raise ValueError(f"no figure is called {what!r}: choose one of {', '.join(PLOTS)}")
        return PLOTS[what](self.diagnosis)

    def _each_rank(self, columns: Callable[[RankTrace, RankClock], Columns]) -> Iterator[Columns]:
        clocks = align_run(self.files).clocks
        for trace in read_run(self.files):
            found = columns(on_device_clock(trace), clocks[trace.rank])
            redacted = RedactedWords()  # the program that wrote the file may have written secrets
            yield {
                name: [redacted[one] if type(one) is str else one for one in values]
                for name, values in found.items()
            }

    def __repr__(self) -> str:
        from dsprof.reports import content

        failed = content.with_status(self.diagnosis, Status.FAIL)
        is_recorded = self.diagnosis.quality.is_recorded
        facts = ", ".join(content.run_line(self.diagnosis.run, is_recorded=is_recorded))
        lines = [self.diagnosis.verdict, facts, self.unfinished()]
        lines += (f"{one.severity.value}: {one.title} ({one.rule})" for one in failed)
        return "\n  ".join([f"dsprof run: {lines[0]}", *filter(None, lines[1:])])

    def _repr_html_(self) -> str:
        from dsprof.reports.html.notebook import first_screen

        return first_screen(self.diagnosis)


def load_run(paths: Iterable[Path], epoch: int | None) -> LoadedRun:
    """Read an epoch of the newest run among trace files and folders; None is the last.

    Raises:
        TraceError: there is no readable trace, or no such epoch.
    """
    files = find_run(paths, Selection(epoch=epoch))
    return LoadedRun(summarise_all(files, is_running=goes_on(files)), files)


def _collectives(trace: RankTrace, clock: RankClock) -> Columns:
    rows, groups = trace.collectives, trace.groups
    words = rows.words
    numbers = rows.group.tolist()
    known = [groups.get(number) for number in numbers]
    sites = {number: f"{site.file}:{site.line}" for number, site in trace.sites.items()}
    end_ns = np.where(rows.done_ns > 0, rows.done_ns, np.where(rows.is_open, 0, rows.waited_ns))
    timed = np.full(len(rows), not trace.knows_durations and bool(rows.issue_ns.any()))
    return {
        "rank": [trace.rank] * len(rows),
        "step": _known(rows.step, rows.step >= 0),
        "phase": [words[code] for code in rows.phase],
        "op": [words[code] for code in rows.op],
        "requested": [words[code] for code in rows.requested],
        "group": [one.label if one else "" for one in known],
        "group_key": [one.key if one else "" for one in known],
        "group_size": [(one.size or None) if one else None for one in known],
        "seq": rows.seq.tolist(),
        "peer": _known(rows.peer, rows.peer >= 0),
        "size_bytes": _known(rows.nbytes, rows.tensors > 0),
        "dtype": [words[code] for code in rows.dtype],
        "is_async": rows.is_async.tolist(),
        "on_wire": rows.on_wire.tolist(),
        "start_ns": _known(clock.on_run(rows.issue_ns), timed),
        "end_ns": _known(clock.on_run(end_ns), timed & (end_ns > 0)),
        "blocked_ns": _known(rows.blocked_ns, np.full(len(rows), knows_blocked(trace))),
        "site": [sites.get(number, "") for number in rows.site.tolist()],
    }


def _flushes(trace: RankTrace, clock: RankClock) -> Columns:
    found: Sequence[Flush] = trace.flushes
    return {
        **_fields(found, "phase", "cause", "library", "module", "elements", "dtype", "parameters"),
        **_unless_negative(found, "step", "stage", "bucket"),
        "rank": [trace.rank] * len(found),
        "start_ns": clock.on_run(int_column(found, "start_ns")).tolist(),
        "end_ns": clock.on_run(int_column(found, "end_ns")).tolist(),
        "capacity": [one.capacity or None for one in found],
        "size_bytes": [one.nbytes for one in found],
    }


def _memory(trace: RankTrace, clock: RankClock) -> Columns:
    found: Sequence[MemorySample] = trace.memory
    device: list[dict[str, int]] = [one.device or {} for one in found]
    return {
        **_unless_negative(found, "step", "rss_bytes", "host_available_bytes"),
        "rank": [trace.rank] * len(found),
        "at": [one.at for one in found],
        "time_ns": clock.on_run(int_column(found, "time_ns")).tolist(),
        "allocated_bytes": [one.get(ALLOCATED) for one in device],
        "reserved_bytes": [one.get(RESERVED) for one in device],
    }


def _environment(diagnosis: Diagnosis) -> Iterator[EnvironmentFact]:
    from dsprof.reports.tables.environment import environment

    for table in environment(diagnosis.environment):
        for name, value in table.rows:
            yield EnvironmentFact(section=table.caption, name=str(name), value=str(value))
    for one in diagnosis.environment.differences:
        for value, ranks in one.values.items():
            yield EnvironmentFact(
                section="Different between ranks", name=one.name, value=value, ranks=tuple(ranks)
            )


def _known(values: IntArray, are_known: Any) -> list[int | None]:
    pairs = zip(values.tolist(), are_known.tolist(), strict=True)
    return [value if is_known else None for value, is_known in pairs]


def _fields(records: Sequence[Any], *names: str) -> Columns:
    return {name: [getattr(one, name) for one in records] for name in names}


def _unless_negative(records: Sequence[Any], *names: str) -> Columns:
    columns = _fields(records, *names).items()
    return {name: [None if value < 0 else value for value in values] for name, values in columns}
