"""Which logs are of one job: by the processes that they name, and by the numbers in their names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile
from pathlib import Path

from dsprof.environment.launchers import job_keys
from dsprof.trace.candidates import Process, Stranger, TraceFile
from dsprof.trace.readers.base import Facts, rank_in_name

_NUMBER = re.compile(r"\d{4}(?:-\d\d){2}(?:[-_T.]\d\d(?:[-.:_]\d\d){1,2})?(?!\d)|\d{3,}")
"""A date with the time of day, or a number that does not count ranks or nodes."""
_ANY_NUMBER = re.compile(rf"{_NUMBER.pattern}|\d+")
_OF_NODE = re.compile(
    r"(?<![a-z])(?:n|node|host|worker|pod|server|machine|gpu|dgx|hgx)[-_]?\d+", re.IGNORECASE
)
_OF_SLURM = re.compile(r"slurm-(\d+)(?:_(\d+))?")
"""A job, and its task where it is an array."""
_NOT_DIGITS = re.compile(r"\D")


def without_other_jobs(
    files: Sequence[TraceFile],
) -> tuple[Sequence[TraceFile], list[Stranger]]:
    """Leave out logs of other jobs than the one whose processes other files name.

    Without such a file, the log with the last name is read: the numbers of jobs grow. Logs do not
    name their job, but one with all ranks names all processes of a job.
    """
    logs: defaultdict[Path, list[TraceFile]] = defaultdict(list)
    known = set[Process]()
    for file in files:
        if Facts.LOG in file.reader.tells:
            logs[file.path].append(file)
        else:
            known.add(file.process)
    jobs = {
        path: {file.process for file in log}
        for path, log in logs.items()
        if 1 < log[0].header.world_size == len(log) and all(file.header.pid for file in log)
    }
    if len(jobs) < 2:
        return files, []

    def value(path: Path) -> tuple[int, int, str]:
        return len(jobs[path] & known), len(path.name), path.name

    read = max(jobs, key=value)
    others = set[Process]().union(*(job for job in jobs.values() if not job & jobs[read]))
    apart = {file.path for file in files if file.path in logs and file.process in others}
    reason = f"of another job: it names no process of {read}; to read it, give only its files"
    kept = [file for file in files if file.path not in apart]
    return kept, [Stranger(path, reason) for path in logs if path in apart]


def without_other_numbers(
    files: Sequence[TraceFile],
) -> tuple[Sequence[TraceFile], list[Stranger]]:
    """Leave out logs of other jobs, by the numbers of jobs in names: the last job is read.

    If traces name one of the jobs, that one is read.
    """
    logs = [file for file in files if Facts.LOG in file.reader.tells]
    numbers = _numbers_in_names(logs, _NUMBER)
    if not numbers:  # a short one may be of a node: ranks that were guessed would seem to differ
        logs = [file for file in logs if file.header.world_size or not file.header.pid]
        numbers = _numbers_in_names(logs, _ANY_NUMBER)
    keys = {key for file in files for key in file.header.job_keys}

    def value(job: tuple[int, ...]) -> tuple[bool, tuple[int, ...]]:
        return not keys.isdisjoint(job_keys({"SLURM_JOB_ID": str(job[-1])})), job

    read = max(numbers.values(), key=value, default=())
    apart = {path for path, job in numbers.items() if job != read}
    name = min((path.name for path, job in numbers.items() if job == read), default="")
    reason = f"of another job than {name}, as its name says; to read it, give only its job's files"
    kept = [file for file in files if file.path not in apart]
    return kept, [Stranger(path, reason) for path in sorted(apart)]


def _numbers_in_names(
    logs: Iterable[TraceFile], form: re.Pattern[str]
) -> dict[Path, tuple[int, ...]]:
    """Return the numbers in names that distinguish jobs, such as date and time, if there are any.

    A number does if logs that differ in it are of one rank, or have the names that Slurm gives.
    Tasks of an array are jobs, too.
    """
    numbers: dict[Path, tuple[int, ...]] = {}
    of_rank: defaultdict[int, set[tuple[int, ...]]] = defaultdict(set)
    of_process: defaultdict[Process, set[tuple[int, ...]]] = defaultdict(set)
    for file in logs:
        of_slurm = _OF_SLURM.fullmatch(file.path.stem)
        name = _OF_NODE.sub("", file.path.stem)
        told = filter(None, of_slurm.groups()) if of_slurm else form.findall(name)
        found = tuple(int(_NOT_DIGITS.sub("", number)) for number in told)
        if rank_in_name(file.path) in found:
            found = tuple(number for number in found if number != file.header.rank)
        if not found or file.header.pid in found:
            continue
        numbers[file.path] = found
        # A log that names no rank counts for rank 0.
        if file.header.rank or of_slurm:
            of_rank[file.header.rank].add(found)
        if file.header.pid:
            of_process[file.process].add(found)
    # In order, those that have most in common are neighbours.
    differ = [pair for some in of_rank.values() for pair in pairwise(sorted(some))]
    is_of_one = any(len(some) > 1 for some in of_process.values())
    if is_of_one or not differ:
        return {}
    places = [_common(*pair) for pair in differ]
    of_job = slice(min(places), max(places) + 1)
    return {path: job for path, found in numbers.items() if (job := found[of_job])}


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return with how many equal numbers both begin."""
    return sum(takewhile(bool, (a == b for a, b in zip(one, other, strict=False))))
