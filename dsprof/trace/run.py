"""From paths to one run: which files belong together, and which are skipped and why."""

from __future__ import annotations

import os.path
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from dsprof.environment import written_snapshot
from dsprof.errors import TraceError
from dsprof.files.inputs import is_local
from dsprof.files.read_ahead import answers, read_ahead
from dsprof.files.redaction.known_settings import written_config, written_variables
from dsprof.findings.wording import named, some
from dsprof.trace import column_cache
from dsprof.trace.background import mark_background
from dsprof.trace.candidates import Stranger, TraceFile
from dsprof.trace.dumps.hang_dump import dump_path, find_dump
from dsprof.trace.dumps.state_file import RankState, find_state, parsed_state, process_of
from dsprof.trace.host_folders import shared_folder
from dsprof.trace.joining import join
from dsprof.trace.life import life_of
from dsprof.trace.packed import OnDemand, packed
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import first_whole_step, read_trace
from dsprof.trace.readers import reader_of
from dsprof.trace.readers.native import READER as NATIVE
from dsprof.trace.recordings import choose_recording, until
from dsprof.trace.rolling.parts import (
    STATE,
    is_closed,
    is_rolling,
    part_of,
    possible_parts,
    written_at_s,
    written_parts,
)
from dsprof.trace.run_choice import Choice
from dsprof.trace.schema import Header, Note, StepIndex
from dsprof.trace.selection import EVERYTHING, OPEN_END, Selection
from dsprof.trace.selection.since import first_step_since
from dsprof.trace.selection.step_cutting import cut_to_steps, read_index
from dsprof.trace.source import Source, file_of, is_readable
from dsprof.trace.trace_files import (
    bounded_memory,
    given_path,
    read_headers,
    reader_for,
    trace_files,
)

_NATIVE_NAME = re.compile(r"^(?P<start>trace.*)\.rank(?P<rank>\d{1,9})\.json(?:\.gz)?$")
_NOTHING = "no trace of {} was found{}; omit the option to read all ranks"
_MOST_VARIABLES = 1 << 12
_TOO_MANY_VARIABLES = (
    "{path} holds {count:,} environment variables, more than any process has: they are excluded"
)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of one run, in the order of their ranks; `headers[i]` is of `files[i]`.

    `beside[rank]` are files with more about a rank. A file of several ranks is listed with each.
    """

    files: Sequence[Path]
    headers: Sequence[Header]
    strangers: tuple[Stranger, ...] = ()
    beside: Mapping[int, Sequence[Path]] = field(default_factory=dict)
    selection: Selection = EVERYTHING
    epochs: Sequence[RunFiles] = ()  # all, by dsprof's traces, where the run has several
    epoch: int = 1
    newest_from: int = 0  # of rolling recordings: the first step since which no rank left one out

    def of_ranks(self, wanted: Container[int]) -> RunFiles:
        """Return the files of some of the ranks."""
        chosen = [i for i, header in enumerate(self.headers) if header.rank in wanted]
        return replace(
            self,
            files=packed(self.files[i] for i in chosen),
            headers=packed(self.headers[i] for i in chosen),
            beside={rank: paths for rank, paths in self.beside.items() if rank in wanted},
        )


def find_run(
    paths: Iterable[str | Path], selection: Selection = EVERYTHING, last: Path | None = None
) -> RunFiles:
    """Find the newest run among trace files and folders of trace files, and of it one epoch.

    With the trace `last`, what was recorded after it does not count.
    Files of other runs, copies, and files that cannot be read are in `strangers`. Of dsprof's own
    traces those whose names tell that they are not selected are not opened, but for one of each
    start: which run is the newest, and which epochs it has, does not depend on the selection.

    Raises:
        TraceError: a path does not exist, no selected file among them is a readable trace, or the
            run has no such epoch.
    """
    found, unopened = trace_files([given_path(path) for path in paths])
    selected = _selected(found, selection)
    of_starts = _of_each_start(found) - {*selected} if selection.ranks else set()
    files, strangers = read_headers([*selected, *sorted(of_starts)], unopened)
    chosen, over = choose_recording(files if last is None else until(files, last), selection.epoch)
    ranks = [files for files in chosen.ranks if _is_selected(files[0], selection)]
    if not ranks:
        raise _nothing_selected(selection, chosen)
    strangers = [one for one in (*strangers, *over, *chosen.strangers) if one.path not in of_starts]
    selection = _with_steps(selection, [first for first, *_ in ranks])
    return RunFiles(
        files=packed(files[0].path for files in ranks),
        headers=packed(files[0].header for files in ranks),
        strangers=tuple({stranger.path: stranger for stranger in strangers}.values()),
        beside={first.header.rank: [file.path for file in more] for first, *more in ranks if more},
        selection=selection,
        epochs=[_epoch(files, selection) for files in chosen.epochs[:-1] and chosen.epochs],
        epoch=chosen.number,
        newest_from=_newest_from(files[0] for files in ranks),
    )


def _newest_from(files: Iterable[TraceFile]) -> int:
    """Return the first step since which no rank left one out; else figures would mix steps."""
    first = 0
    rolling = [file for file in files if file.reader is NATIVE and is_rolling(file.header)]
    for file in read_ahead(
        rolling, lambda one: [] if is_local(one.path) else possible_parts(one.path)
    ):
        with suppress(TraceError):  # met again, and said, when the rank is read
            first = max(first, first_whole_step(file.path))
    return first


def _with_steps(selection: Selection, ranks: Sequence[TraceFile]) -> Selection:
    """Return a selection that names steps instead of a time, as the rank that came furthest does.

    Raises:
        TraceError: no step of it ended since.
    """
    if selection.since is None:
        return selection
    last = ranks[0]
    if len(ranks) > 1:
        indexes = answers(_index_of, [file.path for file in ranks])
        last = max(zip(map(_end_s, ranks, indexes), ranks, strict=True), key=itemgetter(0))[1]
    path, header = last.path, last.header

    def read(steps: range | None) -> RankTrace:
        return _of_rank(path, header.rank, {}, steps)

    begin = first_step_since(path, header.started_epoch_ns, selection.since, read)
    return replace(selection, since=None, steps=range(begin, OPEN_END))


def _index_of(path: Path) -> StepIndex | None:
    with suppress(TraceError), Source(path) as source:
        return read_index(source)
    return None


def _end_s(file: TraceFile, index: StepIndex | None) -> tuple[bool, float]:
    """Return when a rank ended, as its index tells, or else when it was written last."""
    if index is not None and index.ended_ns[-1]:
        return True, (file.header.started_epoch_ns + index.ended_ns[-1]) / 1e9
    return False, written_at_s(file.path)


def _epoch(files: Iterable[TraceFile], selection: Selection) -> RunFiles:
    ranks = sorted(
        (file for file in files if _is_selected(file, selection)), key=lambda one: one.header.rank
    )
    return RunFiles(
        packed(file.path for file in ranks),
        packed(file.header for file in ranks),
        selection=replace(selection, steps=None),
    )


def _is_selected(file: TraceFile, selection: Selection) -> bool:
    return selection.holds_rank(file.header.rank) and selection.holds_host(file.header.host)


def _selected(files: Sequence[Path], selection: Selection) -> list[Path]:
    """Leave out traces whose names tell that their rank is not read.

    Raises:
        TraceError: all are left out.
    """
    names = {path: _NATIVE_NAME.search(path.name) for path in files}
    kept = [
        path
        for path, name in names.items()
        if name is None or selection.holds_rank(int(name["rank"]))
    ]
    if files and not kept:
        ranks = named(int(name["rank"]) for name in names.values() if name is not None)
        raise TraceError(_NOTHING.format(selection, f" (there are traces of {ranks})"))
    return kept


def _of_each_start(files: Iterable[Path]) -> set[Path]:
    """Return the trace of the lowest rank of each start, as far as names tell."""
    lowest: dict[tuple[Path, str], tuple[int, Path]] = {}
    for path in files:
        if (name := _NATIVE_NAME.search(path.name)) is not None:
            key, found = (path.parent, name["start"]), (int(name["rank"]), path)
            lowest[key] = min(lowest.get(key, found), found)
    return {path for _, path in lowest.values()}


def _nothing_selected(selection: Selection, chosen: Choice) -> TraceError:
    hosts: list[str] = []
    if selection.hosts and not selection.ranks:  # else few were opened
        hosts = sorted({file.header.host for files in chosen.ranks for file in files} - {""})
    there = f" (the hosts are {some(hosts)})" if hosts else ""
    if len(chosen.epochs) < 2:
        return TraceError(_NOTHING.format(selection, there))
    return TraceError(
        f"epoch {chosen.number} of {len(chosen.epochs)} has no trace of {selection}{there}; name "
        "another with --epoch, or omit the option to read all ranks"
    )


def check_steps(run: RunFiles) -> None:
    """Look for the steps that were to be read, of which no rank has one whole, in the first rank.

    Raises:
        TraceError: it has other steps, but nothing of these.
    """
    path, header, wanted = run.files[0], run.headers[0], run.selection.steps
    trace = _of_rank(path, header.rank, {})
    whole = [(one.step, one.step + 1) for one in trace.steps]
    whole += [(one.first_step, one.end) for one in trace.rollups.values() if one.steps]
    if wanted is None or not whole or wanted.start in trace.collectives.step:
        return
    begun, ended = zip(*whole, strict=True)
    epoch = f"epoch {run.epoch} of {len(run.epochs)}, " if run.epochs else ""
    detailed = [one.step for one in trace.steps]
    nearest = [step for step in detailed if step < wanted.start][-1:]
    nearest += [step for step in detailed if step >= wanted.stop][:1]
    places = " and ".join(map(str, nearest))
    some_of = f", and details of some (nearest: {places})" if trace.rollups else ""
    raise TraceError(
        f"{path}: no details of {Selection(steps=wanted)} were recorded; {epoch}rank {header.rank} "
        f"has {Selection(steps=range(min(begun), max(ended)))}{some_of}: select some of these"
    )


_FRESH_S = 15.0
"""A file written so long ago may still grow: a living process writes at least every 5 s."""


def is_growing(run: RunFiles) -> bool:
    """Say whether a rank has shown life lately, and not written its last line."""
    return any(map(_grows, run.files, run.headers))


def goes_on(run: RunFiles) -> bool:
    """Say whether a run grows, and none of its ranks is known to have been killed."""
    return is_growing(run) and not any(map(_is_killed, run.files, run.headers))


def _is_killed(path: Path, header: Header) -> bool:
    return is_local(path) and life_of(path, header).is_gone and not _has_ended(path)


def can_grow(path: Path) -> bool:
    """Say whether a file is a trace as dsprof records it, not packed and of no other tool."""
    return path.suffix != ".gz" and reader_of(path) in (NATIVE, None)


def _grows(path: Path, header: Header) -> bool:
    if not is_local(path):
        return False
    life = life_of(path, header)
    is_alive = life.silent_s < _FRESH_S and not life.is_gone
    return is_alive and can_grow(path) and not _has_ended(path)


def _has_ended(path: Path) -> bool:
    return is_closed(path) or not os.path.isfile(path)  # it is in an archive


class RankFiles(NamedTuple):
    """The files of one rank, as `read_rank` takes them."""

    path: Path
    header: Header
    beside: Sequence[Path] = ()
    held: Mapping[Path, RankTrace] = {}  # what was read of the rank in files of several ranks
    steps: range | None = None  # to read; None: all
    newest_from: int = 0  # of the run


def rank_files(run: RunFiles) -> Sequence[RankFiles]:
    """Return the files of each rank, on demand. Those of several ranks are read here, and once."""
    uses = Counter(path for paths in (run.files, *run.beside.values()) for path in paths)
    held: defaultdict[int, dict[Path, RankTrace]] = defaultdict(dict)
    for path in (path for path, count in uses.items() if count > 1):
        with suppress(TraceError):  # each of its ranks meets the error when it is read
            for trace in _read(path):
                held[trace.rank][path] = trace

    def of_rank(place: int) -> RankFiles:
        path, header = run.files[place], run.headers[place]
        beside, traces = run.beside.get(header.rank, ()), held.get(header.rank, {})
        return RankFiles(path, header, beside, traces, run.selection.steps, run.newest_from)

    return OnDemand(of_rank, range(len(run.files)))


def objects_of(files: RankFiles) -> list[Path]:
    """Return the objects of a store that `read_rank` looks for."""
    path, header = files.path, files.header
    if is_local(path):
        return []
    found = [file_of(one) for one in (path, *files.beside)]
    if _NATIVE_NAME.search(path.name):
        found.append(dump_path(shared_folder(path), header.rank))
    return found + (written_parts(path) if is_rolling(header) else [])


def read_run(run: RunFiles) -> Iterator[RankTrace]:
    """Read the traces of a run, one rank in memory at a time.

    Raises:
        TraceError: a file has become unreadable since `find_run`.
    """
    return (read_rank(files) for files in read_ahead(rank_files(run), objects_of))


def read_rank(files: RankFiles) -> RankTrace:
    """Read one rank of a run, of which the header was read before.

    Raises:
        TraceError: a file has become unreadable since.
    """
    path, header, steps = files.path, files.header, files.steps
    others = iter(files.beside)
    trace = _first_readable(files, others)
    if not trace.is_foreign and process_of(trace.header) != process_of(header):
        raise TraceError(f"{path}: changed while it was read: it is of another process now")
    for other in others:
        try:
            join(trace, _of_rank(other, header.rank, files.held))
        except TraceError as error:
            trace.notes.append(Note(str(error)))
    trace.newest_from = max(trace.newest_from, files.newest_from)
    if steps is not None:
        cut_to_steps(trace, steps)
    # What a single file does not contain was taken from all of them.
    trace.is_world_known = bool(trace.header.world_size)
    trace.header.world_size = header.world_size
    if trace.trailer is None and not trace.is_foreign:
        trace.state = find_state(trace.header, shared_folder(path)) or _archived_state(path)
    if not trace.is_foreign:
        trace.hang_dump = find_dump(trace.header, shared_folder(path))
    mark_background(trace)
    _redact(trace)
    return trace


def _first_readable(files: RankFiles, others: Iterator[Path]) -> RankTrace:
    """Read the first file of a rank; if it is another tool's and unreadable, the next one."""
    path, unread = files.path, list[Note]()
    while True:
        try:
            trace = _of_rank(path, files.header.rank, files.held, files.steps)
        except TraceError as error:
            following = None if reader_for(path) is NATIVE else next(others, None)
            if following is None:
                raise
            unread.append(Note(str(error)))
            path = following
        else:
            trace.notes += unread
            return trace


def _archived_state(path: Path) -> RankState | None:
    """Return the state of a process whose trace is in an archive."""
    place = part_of(path, STATE)
    with suppress(TraceError):
        if is_readable(place):
            with Source(place) as source:
                return parsed_state(source.read_whole(), place)
    return None


def _redact(trace: RankTrace) -> None:
    """Hide settings that a log quotes, or that an earlier dsprof wrote, as recording hides them."""
    if trace.header.anonymized:  # the folders in which it lies now name people, too
        trace.path, *trace.beside = (Path(path).name for path in (trace.path, *trace.beside))
    if trace.environment is not None:
        found = trace.environment
        count = sum(map(len, (found.variables, found.effective, *found.files.values())))
        trace.environment = None if count > _MOST_VARIABLES else written_snapshot(found)
        if trace.environment is None:
            trace.notes.append(Note(_TOO_MANY_VARIABLES.format(path=trace.path, count=count)))
    if trace.log is not None:
        trace.log.variables = written_variables(trace.log.variables)
    for number, engine in trace.engines.items():
        configs = {name: written_config(getattr(engine, name)) for name in ("written", "effective")}
        trace.engines[number] = msgspec.structs.replace(engine, **configs)


def _of_rank(
    path: Path, rank: int, held: Mapping[Path, RankTrace], steps: range | None = None
) -> RankTrace:
    if path in held:
        return held[path]
    for trace in _read(path, steps):
        if trace.rank == rank:
            return trace
    raise TraceError(f"{path}: changed while it was read: it no longer contains rank {rank}")


def _read(path: Path, steps: range | None = None) -> Iterable[RankTrace]:
    reader = reader_for(path)
    with bounded_memory(path):
        for trace in [_native(path, steps)] if reader is NATIVE else reader.read_traces(path):
            trace.is_foreign = reader is not NATIVE
            yield trace


def _native(path: Path, steps: range | None) -> RankTrace:
    """Read a native trace, or what was kept of it when it was read before."""
    place = column_cache.place_of(path)
    trace = column_cache.load(path, place)
    if trace is not None and steps is not None and (trace.broken_lines or trace.unknown_records):
        trace = None  # which may be of other steps
    if trace is None:
        trace = read_trace(path, steps)
        if steps is None:
            _redact(trace)
            column_cache.store(trace, path, place)
    return trace
