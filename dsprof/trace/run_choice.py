"""Which files belong to one run, and to which of its epochs."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial
from itertools import chain, groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from dsprof.errors import TraceError
from dsprof.findings.wording import plural
from dsprof.trace.candidates import Stranger, TraceFile
from dsprof.trace.life import lives_here
from dsprof.trace.log_jobs import without_other_jobs, without_other_numbers
from dsprof.trace.readers.base import START_BYTES, Facts, rank_in_name
from dsprof.trace.readers.native import READER as NATIVE
from dsprof.trace.readers.native import ended_well
from dsprof.trace.schema import OF_PROCESS, Header
from dsprof.trace.source import length_of, read_start, size_of

_LATEST_START_NS = 30 * 60 * 10**9
"""torch's longest default timeout: who comes later finds no group, unless a longer one is set."""
_EARLIER_NS = 5 * 10**9
"""dsprof begins a trace at the first collective; other tools may begin so much earlier."""
_LATEST_PROFILE_NS = 24 * 3600 * 10**9
"""If two tools recorded a run, one begins at most this much later than the other."""
_FIRST_EPOCH_NS = 10**18
"""September 2001: a smaller start is no time of a wall clock."""


class Choice(NamedTuple):
    """The files of an epoch, rank by rank, and what else there is."""

    ranks: list[list[TraceFile]]
    """The files of each rank: first the one that tells most, then those that tell other facts."""
    strangers: list[Stranger]
    epochs: list[list[TraceFile]]  # of the same run, by dsprof's traces; [] where none of them is
    number: int  # of the chosen epoch, from 1


def choose_run(files: Sequence[TraceFile], epoch: int | None = None) -> Choice:
    """Choose an epoch of the newest run, by default the last.

    Raises:
        TraceError: the run has no epoch of that number.
    """
    kept, copies = _without_copies(files)
    of_one_job, other_jobs = without_other_jobs(kept)
    of_one_job, other_numbers = without_other_numbers(of_one_job)
    files = _with_world_size(of_one_job)
    own = [file for file in files if file.reader is NATIVE]
    epochs = _epochs(own)
    count = len(epochs) or 1
    number = count if epoch is None else epoch
    if not 1 <= number <= count:
        raise TraceError(f"no epoch {number}: the newest run has {plural(count, 'epoch')}")
    beside = [file for file in files if file.reader is not NATIVE]
    apart = [file for file in beside if count > 1 and _began_in(file, epochs) not in (number, None)]
    read = [*epochs[number - 1 : number], *([file] for file in beside if file not in apart)]
    newest, earlier = _newest_of_each_kind([*chain(*read)])
    run, others = _joined(newest)
    ranks: defaultdict[int, list[TraceFile]] = defaultdict(list)
    again: list[Stranger] = []
    for file in sorted(run, key=attrgetter("place")):
        tells = file.reader.tells
        told = next((one for one in ranks[file.header.rank] if tells in one.reader.tells), None)
        if told is not None and Facts.LOG not in tells:
            reason = f"contains the same facts about rank {file.header.rank} as {told.path}"
            again.append(Stranger(file.path, reason))
        else:
            ranks[file.header.rank].append(file)
    if sum(map(len, epochs)) < len(own):
        known = {id(file) for files in epochs for file in files}
        earlier += [file for file in own if id(file) not in known]
    strangers = [
        *copies,
        *other_jobs,
        *other_numbers,
        *again,
        *(_earlier(file, ranks.get(file.header.rank, ())) for file in earlier),
        *(_of_another_run(file, run[0]) for file in others),
        *(
            Stranger(file.path, f"of epoch {_began_in(file, epochs)}, not {number}")
            for file in apart
        ),
    ]
    return Choice([ranks[rank] for rank in sorted(ranks)], strangers, epochs, number)


def _newest_of_each_kind(
    files: Sequence[TraceFile],
) -> tuple[list[list[TraceFile]], list[TraceFile]]:
    """Return the newest run among the files of each reader, and the files of earlier runs."""
    newest: list[list[TraceFile]] = []
    earlier: list[TraceFile] = []
    for _, group in groupby(sorted(files, key=attrgetter("place")), attrgetter("place")):
        mine = list(group)
        if Facts.LOG in mine[0].reader.tells:
            newest.append(mine)
            continue
        *before, last = sorted(_runs(mine), key=_start_and_size)
        newest.append(last)
        earlier += [file for run in before for file in run]
    return newest, earlier


def _joined(runs: Sequence[list[TraceFile]]) -> tuple[list[TraceFile], list[TraceFile]]:
    """Join to the newest time line what may be of the same run; return the rest, too.

    Without a time line the files of most ranks lead.
    """
    timelines = [run for run in runs if Facts.TIMELINE in run[0].reader.tells]
    lead = max(timelines, key=_start_and_size) if timelines else max(runs, key=len)
    run = list(lead)
    others: list[TraceFile] = []
    for more in runs:
        if more is not lead:
            (run if _may_be_one(lead, more) else others).extend(more)
    return run, others


def _epochs(files: Sequence[TraceFile]) -> list[list[TraceFile]]:
    """Return the epochs of the newest run, the first one first.

    An epoch is what the workers did between a start of the process group and the next. Starts with
    a sure key in common are one job. Of jobs with another key in common each is of the run of the
    next one if it failed; one that ended well was the end of a run, and one that still runs is
    another run.
    """
    run: list[int] = []
    keys: set[str] = set()  # of later jobs of the run
    starts = sorted(_runs(files), key=_start_and_size)
    jobs = list(_jobs(starts))
    for job in jobs:  # a wall clock may be set back between two starts
        in_order = sorted((starts[number] for number in sorted(job)), key=_restarts)
        for number, start in zip(sorted(job), in_order, strict=True):
            starts[number] = start
    for job in jobs:
        mine = set[str]().union(*(_keys(starts[number]) for number in job))
        common = keys & mine
        if not run or (common and not all(map(_goes_on_or_ended_well, starts[max(job)]))):
            run += job
            keys |= mine
        else:
            keys -= common
    return [starts[number] for number in sorted(run)]


def _restarts(start: Sequence[TraceFile]) -> int:
    return max(file.header.restarts for file in start)


def _goes_on_or_ended_well(file: TraceFile) -> bool:
    return lives_here(file.header) or ended_well(file.path)


def _jobs(starts: Sequence[Sequence[TraceFile]]) -> Iterator[set[int]]:
    """Yield which starts are of one job, directly or by others, the job of the last one first."""
    having: dict[str, tuple[int, ...]] = {}  # most keys are of one process: sets are large
    for number, start in enumerate(starts):
        for key in filter(_is_sure, _keys(start)):
            having[key] = (*having.get(key, ()), number)
    seen: set[int] = set()
    for last in reversed(range(len(starts))):
        job, fresh = set[int](), {last} - seen
        while fresh:
            job |= fresh
            keys = chain.from_iterable(_keys(starts[number]) for number in fresh)
            fresh = {number for key in keys for number in having.pop(key, ())} - job
        if job:
            yield job
        seen |= job


def _began_in(file: TraceFile, epochs: Sequence[Sequence[TraceFile]]) -> int | None:
    """Return in which epoch another tool began a file; None if it does not say when."""
    if not knows_wall_clock(file.header):
        return None
    starts_ns = [min(one.start_ns for one in run) for run in epochs]
    return max(bisect_right(starts_ns, file.start_ns + _EARLIER_NS), 1)


def _keys(run: Iterable[TraceFile]) -> set[str]:
    return {key for file in run for key in file.header.job_keys}


def _is_sure(key: str) -> bool:
    """Say whether only epochs of one job have this key."""
    return not key.startswith("perhaps")


def _may_be_one(lead: Sequence[TraceFile], more: Sequence[TraceFile]) -> bool:
    """Say whether nothing speaks against it that two tools watched one run."""
    writers = {file.header.rank: file.header for file in lead}
    for file in more:
        mine, other = file.header, writers.get(file.header.rank)
        if mine.world_size != lead[0].header.world_size:
            return False
        if other and any(
            known and theirs and known != theirs
            for known, theirs in ((mine.host, other.host), (mine.pid, other.pid))
        ):
            return False
    later_ns = more[0].start_ns - lead[0].start_ns
    if Facts.TIMELINE in more[0].reader.tells:
        has_clocks = all(knows_wall_clock(run[0].header) for run in (lead, more))
        return not has_clocks or abs(later_ns) <= _LATEST_PROFILE_NS
    is_timed = Facts.TIMELINE in lead[0].reader.tells and more[0].start_ns
    return not is_timed or later_ns >= -_LATEST_START_NS


def _with_world_size(files: Sequence[TraceFile]) -> list[TraceFile]:
    """Give files that do not say how many ranks there were what others say, or what they show."""
    unsaid = [file.header.rank for file in files if not file.header.world_size]
    most = max((rank + 1 for rank in unsaid), default=0)
    said = {file.header.world_size for file in files} - {0}
    size = min(said) if len(said) == 1 and min(said) >= most else most
    return [
        file
        if file.header.world_size
        else replace(file, header=structs.replace(file.header, world_size=size))
        for file in files
    ]


def _without_copies(files: Sequence[TraceFile]) -> tuple[list[TraceFile], list[Stranger]]:
    same: defaultdict[tuple[object, ...], list[TraceFile]] = defaultdict(list)
    start_of = cache(partial(read_start, size=START_BYTES))  # files of several ranks: once
    for file in files:
        same[_writer(file, start_of)].append(file)
    kept: list[TraceFile] = []
    copies: list[Stranger] = []
    for group in same.values():
        # Of a whole file and one that was cut the whole one is read.
        original = max(group, key=lambda one: length_of(one.path)) if len(group) > 1 else group[0]
        kept.append(original)
        reason = f"a copy of {original.path}"
        copies += [Stranger(file.path, reason) for file in group if file is not original]
    return kept, copies


def _writer(file: TraceFile, start_of: Callable[[Path], bytes]) -> tuple[object, ...]:
    """Return what is the same of copies: who began to write them, and when.

    Files that do not say that are compared by their bytes.
    """
    header = file.header
    told: tuple[object, ...] = (header.run_key, header.rank, file.start_ns, header.host, header.pid)
    if not file.start_ns:
        return *told, size_of(file.path), start_of(file.path)
    if not (header.world_size or header.host):
        return *told, start_of(file.path)
    return told


def _runs(files: Iterable[TraceFile]) -> Iterator[list[TraceFile]]:
    def key(file: TraceFile) -> tuple[str, int]:
        return file.header.run_key, file.header.world_size

    for _, group in groupby(sorted(files, key=lambda file: (key(file), file.start_ns)), key):
        yield from _split(list(group))


def _split(files: list[TraceFile]) -> Iterator[list[TraceFile]]:
    """Split files in the order of their starts at the widest pause, until each part is one run.

    Runs that share a key (the same command, typed twice) are distinguished by what one run cannot
    have: a rank twice, or a start later than the others would have waited for it, by another
    launcher.
    """
    parts = [files]
    while parts:
        part = parts.pop()
        if _is_one_run(part):
            yield part
            continue
        pauses = [after.start_ns - before.start_ns for before, after in pairwise(part)]
        cut = pauses.index(max(pauses)) + 1
        parts += [part[:cut], part[cut:]]


def _is_one_run(files: Sequence[TraceFile]) -> bool:
    if len({file.header.rank for file in files}) < len(files):
        return False
    # What a dump holds may have begun at any time before it was made.
    if Facts.TIMELINE not in files[0].reader.tells:
        return True
    latest_ns = files[0].start_ns + _LATEST_START_NS
    late = [file for file in files if file.start_ns > latest_ns]
    early = [file for file in files if file.start_ns <= latest_ns]
    return not late or bool(_launchers(early) & _launchers(late))


def _launchers(files: Iterable[TraceFile]) -> set[str]:
    """Return the keys of what started the processes: not their own, and none that users choose."""
    return {key for key in _keys(files) if _is_sure(key) and not key.startswith(OF_PROCESS)}


def _start_and_size(run: Sequence[TraceFile]) -> tuple[int, int]:
    return run[-1].start_ns, len(run)


def _earlier(file: TraceFile, read: Sequence[TraceFile]) -> Stranger:
    """Say why a file is not read although it is no copy of those that are, of the same rank."""
    alike = next((one for one in read if one.place == file.place), None)
    if alike is not None and Facts.SNAPSHOT in file.reader.tells and rank_in_name(file.path) < 0:
        reason = f"names no rank, so rank 0 is assumed, as of {alike.path}"
        return Stranger(file.path, f"{reason}; files of several ranks need names as rank3.pickle")
    if alike is not None and file.process == alike.process and file.header.pid:
        what = "an earlier window of the same process"
    else:
        what = "another run" if file.reader is NATIVE else "another recording"
    reason = f"rank {file.header.rank} of {what}{_started(file)}"
    return Stranger(file.path, f"{reason}; to read it, give only its files")


def _of_another_run(file: TraceFile, lead: TraceFile) -> Stranger:
    world = file.header.world_size
    of_world = f" of {world}" if world != lead.header.world_size else ""
    who = f"rank {file.header.rank}{of_world}"
    reason = f"{who} of another run{_started(file)} than {lead.path}"
    return Stranger(file.path, f"{reason}; to read it, give only its files")


def _started(file: TraceFile) -> str:
    if not file.start_ns:
        return ""
    moment = datetime.fromtimestamp(file.start_ns / 1e9, tz=timezone.utc)
    return moment.strftime(" (started %Y-%m-%d %H:%M:%S UTC)")


def knows_wall_clock(header: Header) -> bool:
    """Say whether the start of a file is a time of day."""
    return header.started_epoch_ns >= _FIRST_EPOCH_NS
