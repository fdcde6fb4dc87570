"""Goes through the lines of a log and finds out which rank wrote each.

A line belongs to the rank that a launcher or the writer put before it, or to the process that
NCCL names, whose rank is the one that it has in the largest communicator. Lines without a writer
belong to the lowest rank of the file; failures among them may be of any rank.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from dsprof.trace.rank_log import (
    EXCEPTION,
    FAILED,
    FAILED_FIRST,
    FROM_OUTSIDE,
    LAUNCHER,
    OF_JOB,
    TRACEBACK,
    CollectiveTimeout,
    LastWork,
    LogMark,
    RankLog,
    Room,
)
from dsprof.trace.readers.logs import benchmark_tables, launchers, tracebacks
from dsprof.trace.readers.logs.benchmark_tables import BenchmarkTables
from dsprof.trace.readers.logs.comms_logger import VERSION, CommsLoggerText
from dsprof.trace.readers.logs.launchers import ElasticList
from dsprof.trace.readers.logs.nccl_messages import understand, warning
from dsprof.trace.readers.logs.prefix import (
    Said,
    before_block,
    cut_lines,
    nccl_message,
    without,
    without_launcher,
)
from dsprof.trace.readers.logs.printed_config import PrintedConfig
from dsprof.trace.readers.logs.starts import RESTARTS, Starts
from dsprof.trace.readers.logs.throughput import ThroughputTimer
from dsprof.trace.readers.logs.torch_messages import gave_up, out_of_memory, rank_of_writer
from dsprof.trace.readers.logs.tracebacks import MISMATCH, Tracebacks
from dsprof.trace.schema import LARGEST_WORLD

MARKS = (
    *(b"CCL ", b"comm op: ", b"Comm. Op", b"out of memory", b"atchdog "),
    *(b"Received a dump signal ", b"failed to pass monitoredBarrier "),
    *(b"ALLOC_CONF", b"DeepSpeed info: version=", b"Overflow detected", b"OVERFLOW!"),
    *(b"Heartbeat monitor ", b"RendezvousTimeoutError", b"RendezvousConnectionError"),
    *(b"store based barrier on rank", b"ving ncclUniqueId from ", b"ChildFailedError"),
    *(b" socket has ", b" seconds waiting for clients. ", b"Last error:"),
    *(b"Setting OMP_NUM_THREADS ", b"json = {", b"fi_getinfo: provider ", b"SamplesPerSec="),
    *(b": Test CUDA failure ", b" by GPU node-", b"TCPStore server has shut down", b" SocketImpl("),
    RESTARTS.encode(),
    *launchers.MARKS,
    *benchmark_tables.MARKS,
    *tracebacks.MARKS,
)
"""Marks of lines that are looked at; each is searched through the whole file."""

_ALLOCATOR = re.compile(
    # What torch advises is not what is set.
    r"(?<!try setting )\bPYTORCH_(?:\w+_)?ALLOC_CONF['\"]?\s*[=:]\s*['\"]?([\w:,.\[\]-]{3,200})"
)
_NCCL_ERROR = re.compile(
    r"NCCL [Ee]rror(?: in| \d{1,2})?: ?(?:\S+:\d+, )?(?P<what>[a-z][^,(\n]{3,100})"
)
_TEST_FAILURE = re.compile(
    r"(?P<host>[\w.-]{1,255}): Test (?P<lib>NCCL|CUDA) failure \S{1,99} "
    r"'(?P<what>[^'/]{3,100}?) ?[/']"
)
_OF_TORCH = re.compile(
    r"watchdog got stuck for \d{1,9} seconds|Heartbeat monitor timed out"
    # Agents that end after the one with the store miss it, at the end of any run.
    r"|(?<!due to an error of type )Rendezvous(?:Timeout|Connection)Error"
    r"|store based barrier on rank: \d{1,9}, .{0,200}worker_count=\d{1,9}"
    r"|retr(?:ie|ei)ving ncclUniqueId from \[\d{1,9}\].{0,300}(?:Socket|wait) [Tt]imeout"
    r"|client socket has timed out after \d{1,9}m?s while trying to connect"
    r"|client socket has failed to connect to any network address"
    r"|server socket has failed to listen on any local network address"
    r"|Timed out after \d{1,9} seconds waiting for clients\. \d{1,9}/\d{1,9} clients joined"
    r"|TCPStore server has shut down too early|\b\w{1,40} failed on SocketImpl"
    r"|(?:Memory access \w{1,9}|HW Exception) by GPU"
)
_NO_PROVIDER = re.compile(
    r"fi_getinfo: provider (?P<name>efa|cxi|verbs|psm\d|opx)\S* "
    r"(?:output empty list|returned -61\b)"
)
_NUMBERED = (
    "a log does not say which ranks its processes were ({count}): they are numbered by host and "
    "device"
)
_RANK_UNKNOWN = (
    "a log does not say which rank wrote it: its lines count for rank 0, its failures for no rank"
)
_TASKS = LARGEST_WORLD
"""From here on ranks are tasks of srun: which ranks these are is known at the end of the log."""
_OF_SEVERAL_RANKS = "Setting OMP_NUM_THREADS environment variable for each process"
"""What torchrun says only if it starts several ranks."""
_MOST_PROCESSES = 1 << 15
"""Each takes ten kilobytes until it is judged."""
_MOST_LOGGERS = 1 << 12
_NEAR_BYTES = 1 << 14
_MOST_FACTS = 1 << 18
"""All processes of a file together keep this many facts of a few hundred bytes each."""


@dataclass(slots=True)
class _Writer:
    """Who wrote lines: a process of NCCL, a rank, or unknown."""

    log: RankLog = field(default_factory=RankLog)
    host: str = ""
    pid: int = 0
    device: int = -1
    rank: int = -1  # as a launcher says
    # size of a communicator -> device -> rank in it; a process of several devices is several ranks
    places: dict[int, dict[int, int]] = field(default_factory=dict)

    def ranks_of(self, size: int) -> set[int]:
        """Return which ranks it is of a communicator of that size."""
        return {*self.places.get(size, {}).values()}

    @property
    def order(self) -> tuple[str, int, int]:
        """How writers of unknown rank are ordered."""
        return self.host, self.device, self.pid


@dataclass(frozen=True, slots=True)
class LoggedRank:
    """One rank in the log, and the process that was it; `note` is for the user."""

    rank: int
    host: str
    pid: int
    log: RankLog
    note: str = ""


class LogScan:
    """Goes through the lines of one file."""

    def __init__(self) -> None:
        self._writers: dict[tuple[str, int], _Writer] = {}
        self._comms: dict[int, CommsLoggerText] = {}
        self._version: tuple[int, ...] = ()
        self._table: CommsLoggerText | None = None
        self._before_table = before_block("")
        self._room = Room(_MOST_FACTS)
        self._benchmarks = BenchmarkTables()
        self._measured = RankLog()
        self._strange_lines = 0
        self._elastic = ElasticList()
        self._tracebacks = Tracebacks()
        self._before_error: dict[int, int] = {}  # where ranks announce one of NCCL as next line
        self._timers: defaultdict[int, ThroughputTimer] = defaultdict(ThroughputTimer)
        self.config = PrintedConfig()
        self.starts = Starts()
        self.is_nccl = False
        self._at_bytes = 0
        self._has_ranks_in_tasks = False  # a task of srun is a launcher of ranks

    @property
    def deepspeed(self) -> str:
        """The release of DeepSpeed, "" if the log does not name it."""
        return ".".join(map(str, self._version))

    @property
    def left_out(self) -> int:
        """Lines of processes beyond those that are kept, and facts that found no room."""
        return self._strange_lines + self._room.refused

    def take(self, line: str, at_bytes: int = 0) -> bool:
        """Take a line and where it begins; say whether the next is wanted whatever it holds."""
        self._at_bytes = at_bytes
        rank, task, text = without_launcher(line)
        self._tracebacks.take(line, text, at_bytes)
        if tracebacks.BEGIN in text:
            self.starts.raised()
        if rank < 0 <= task:
            rank = _TASKS + task
        elif rank != task >= 0:
            self._has_ranks_in_tasks = True
        is_taken = self.config.take(text)
        is_wanted = False if is_taken else self._take(rank, line, text)
        is_open = self.config.is_open or self._tracebacks.is_open or self._is_error_near
        return is_wanted or is_open

    @property
    def _is_error_near(self) -> bool:
        """Whether an error is announced, and few lines of other ranks are in between."""
        latest = next(reversed(self._before_error.values()), None)
        return latest is not None and self._at_bytes - latest < _NEAR_BYTES

    def _take(self, rank: int, line: str, text: str) -> bool:
        if self._table is not None and self._table.row(without(self._before_table, text)):
            return True
        self._table = None
        *cut, last = cut_lines(text)
        if said := nccl_message(last):
            for part in cut:
                # What is cut may state another fact than the whole; a warning is one in any case.
                if (one := nccl_message(part)) and one.level == "WARN":
                    self._nccl(-1, one)
            self._nccl(-1 if cut else rank, said)
            return self._benchmarks.is_open
        if "Comm. Op" in text:
            # Only lines of calls name the rank that prints both; it counts them again.
            comms = self._comms_logger(min(self._comms, default=-1) if rank < 0 else rank)
            self._table = comms if comms.heading(text) else None
            self._before_table = before_block(text.partition("Comm. Op")[0])
            return self._table is not None
        self._benchmarks.take(text, self._measured)
        self._torch(rank, line, text)
        return self._benchmarks.is_open

    def _nccl(self, rank: int, said: Said) -> None:
        self.is_nccl = True
        self.starts.take(said, self._at_bytes)
        writer = self._writer(rank, said)
        place = understand(said, writer.log)
        if said.level == "WARN":
            self._mark(writer.log, warning(said), is_error=False)
        if place and place.rank < place.of <= LARGEST_WORLD and len(writer.places) < 64:
            ranks = writer.places.setdefault(place.of, {})
            if len(ranks) < 64:
                ranks[said.device] = place.rank

    def _torch(self, rank: int, line: str, text: str) -> None:
        self._tracebacks.take_alone(rank, text)
        if self._before_error.pop(rank, None) is not None and text.strip():
            self._writer(rank).log.warn(warning(Said("WARN", text.strip())))
        elif text.strip() == "Last error:" and len(self._before_error) < _MOST_LOGGERS:
            self._before_error[rank] = self._at_bytes
        if "ChildFailedError" in text:
            self.starts.gave_up()
        elif RESTARTS in text:
            self.starts.restarts()
        if self._elastic.take(rank, text):
            self._has_ranks_in_tasks |= rank >= _TASKS and rank - _TASKS != self._elastic.rank
            self._elastic_list()
        elif _OF_SEVERAL_RANKS in text:
            self._has_ranks_in_tasks |= rank >= _TASKS
        elif match := VERSION.search(text):
            self._version = tuple(map(int, match.groups()))
        elif "comm op: " in text:
            self._comms_logger(rank_of_writer(line) if rank < 0 else rank).line(text)
        elif "verflow detected" in text or "OVERFLOW!" in text:
            self._writer(rank).log.say("loss scale", "lowered after an overflow")
        elif "ALLOC_CONF" in text and (match := _ALLOCATOR.search(text)):
            self._writer(rank).log.allocator_settings = match[1]
        elif "SamplesPerSec=" in text:
            if report := self._timers[rank].take(text):
                self._writer(rank).log.report(report)
        elif (node := launchers.launched(text)) is not None:
            self.starts.launched(node, self._at_bytes)
        elif cause := launchers.cancelled(text):
            self._writer(rank).log.say(FROM_OUTSIDE, cause)
        elif seen := launchers.noticed(text):
            self._writer(seen[0]).log.say(FAILED_FIRST, seen[1])
        elif how := launchers.failed(text):
            self._writer(-1).log.say(LAUNCHER, how)
            if "failed (exitcode: " in text:
                self.starts.failed(self._at_bytes + len(line.encode()) + 1)
            else:
                self.starts.gave_up()
        elif match := _NO_PROVIDER.search(text):
            log = self._writer(rank).log
            log.say("libfabric failure", f"no {match['name']} device found")
            self._mark(log, f"no {match['name']} device found", is_error=False)
        elif match := _NCCL_ERROR.search(text):
            log = self._writer(rank).log
            log.warn(f"NCCL error: {match['what'].strip()}")
            self._mark(log, f"NCCL error: {match['what'].strip()}")
        elif ": Test " in text and (match := _TEST_FAILURE.search(text)):
            of_test = f"{match['what']} (nccl-tests on {match['host']})"
            self._writer(rank).log.warn(f"{match['lib']} error: {of_test}")
        elif rank < 0 and (match := MISMATCH.search(text)):
            self._writer(-1).log.warn(warning(Said("WARN", match[0])))
        elif match := _OF_TORCH.search(text):
            self._writer(rank_of_writer(line) if rank < 0 else rank).log.warn(match[0])
        if found := out_of_memory(text):
            log = self._writer(self._elastic.rank if rank < 0 else rank).log
            log.add(RankLog(out_of_memory=[found]))
            if rank >= 0 or self._elastic.rank < 0:  # torchrun's list is in the order of ranks
                self._mark(log, "device out of memory")
        elif ended := gave_up(text):
            rank = rank_of_writer(line) if rank < 0 else rank
            log = self._writer(rank).log
            if rank < 0 <= (at := ended.timed_out if isinstance(ended, LastWork) else -1):
                ended = CollectiveTimeout("collective", at, group=ended.group)
            if isinstance(ended, CollectiveTimeout):
                log.add(RankLog(timeouts=[ended]))
                self._mark(log, f"{ended.op} timed out")
            else:
                log.add(RankLog(last_works=[ended]))

    def _elastic_list(self) -> None:
        self.starts.gave_up()
        log = self._writer(self._elastic.rank).log
        if how := self._elastic.failed_first:
            log.say(FAILED_FIRST, how)
        else:
            log.say(FAILED, "failed")

    def _mark(self, log: RankLog, text: str, *, is_error: bool = True) -> None:
        log.mark(LogMark(self._at_bytes, is_error, text))

    def _comms_logger(self, rank: int) -> CommsLoggerText:
        if (comms := self._comms.get(rank)) is None:
            comms = CommsLoggerText(self._room)
            if len(self._comms) < _MOST_LOGGERS:
                self._comms[rank] = comms
            else:
                self._strange_lines += 1
        return comms

    def _writer(self, rank: int, said: Said | None = None) -> _Writer:
        process = said is not None and said.pid
        key = (said.host, said.pid) if said and process else ("", -1 - max(rank, -1))
        writer = self._writers.get(key)
        if writer is None:
            writer = _Writer(RankLog(room=self._room))
            if len(self._writers) < _MOST_PROCESSES:
                self._writers[key] = writer
            else:
                self._strange_lines += 1
            if said:
                writer.host, writer.pid = said.host, said.pid
        if said and said.device >= 0 and writer.device < 0:
            writer.device = said.device
        writer.rank = rank if rank >= 0 else writer.rank
        return writer

    def ranks(self, rank_in_name: int) -> tuple[list[LoggedRank], int]:
        """Return what the file says of each rank, and how many ranks there were, 0 if not known.

        `rank_in_name` is the rank that the name of the file tells, -1 if it tells none.
        """
        for rank, comms in self._comms.items():
            comms.version = self._version
            comms.tell(self._writer(rank).log)
        if self._measured.measured:
            self._writer(-1).log.add(self._measured)
        self._settle_tasks()
        raised = self._tracebacks.raised
        for rank, exception in raised.items():
            if rank < _TASKS:
                self._writer(rank).log.say(EXCEPTION, exception)
            elif not self._has_ranks_in_tasks and rank - _TASKS not in raised:
                self._writer(rank - _TASKS).log.say(EXCEPTION, exception)
        nobody = self._writers.get(("", 0))
        if self._tracebacks.first and nobody is not None and nobody.log.values(LAUNCHER):
            nobody.log.say(TRACEBACK, self._tracebacks.first)
        if nobody is not None and nobody.log == RankLog():  # a text that only mentions NCCL
            del self._writers["", 0]
        if not self._writers and (self.config.written or self._version):
            self._writer(-1)
        nobody = self._writers.pop(("", 0), None)
        writers = _without_fragments(list(self._writers.values()))
        world_size = _world_size(writers)
        placed, unplaced = _placed(writers, world_size)
        notes: dict[int, str] = {}
        free = (rank for rank in count() if rank not in placed)
        for writer in sorted(unplaced, key=lambda writer: writer.order):
            is_named = len(writers) == 1 and rank_in_name >= 0
            rank = rank_in_name if is_named else next(free)
            placed[rank] = [writer]
            if not is_named and not notes:
                notes[rank] = _NUMBERED.format(count=len(unplaced))
        if nobody is not None and not placed:
            rank = max(rank_in_name, 0)
            of_job = {kind: nobody.log.facts[kind] for kind in OF_JOB & nobody.log.facts.keys()}
            if rank_in_name < 0 and not (of_job and nobody.log == RankLog(facts=of_job)):
                notes[rank] = _RANK_UNKNOWN
            placed[rank] = []
        if nobody is not None:
            is_named = rank_in_name >= 0 or any(writer.pid for writer in writers)
            if len(placed) > 1 or not is_named:
                nobody.log.strays = nobody.log.failures()
            placed[min(placed)].append(nobody)
        found = [_rank(rank, placed[rank], notes.get(rank, "")) for rank in sorted(placed)]
        _share([one.log for one in found], nobody)
        return found, world_size if max(placed, default=0) < world_size else 0

    def _settle_tasks(self) -> None:
        """Take each task of srun for the rank of its number, or for any rank if it has several."""
        of_tasks = {key: one for key, one in self._writers.items() if one.rank >= _TASKS}
        world_size = _world_size(self._writers.values())
        self._has_ranks_in_tasks |= any(
            writer.rank - _TASKS not in ranks
            for writer in of_tasks.values()
            if (ranks := writer.ranks_of(world_size))
        )
        for key, writer in of_tasks.items():
            writer.rank = -1 if self._has_ranks_in_tasks else writer.rank - _TASKS
            if self._has_ranks_in_tasks and not writer.pid:
                self._writer(-1).log.add(self._writers.pop(key).log)


def _world_size(writers: Iterable[_Writer]) -> int:
    """Return the size of the largest communicator, 0 if there are several of that size."""
    largest = max((size for writer in writers for size in writer.places), default=0)
    holders: dict[int, tuple[str, int]] = {}
    for writer in writers:
        has_several = len(writer.ranks_of(largest)) > 1
        for device, rank in writer.places.get(largest, {}).items():
            # A rank that was started again is another process in the same place.
            place = writer.host, device if has_several else writer.device
            if holders.setdefault(rank, place) != place:
                return 0
    return largest


def _without_fragments(writers: Sequence[_Writer]) -> list[_Writer]:
    """Give the lines of processes whose names were cut or ran into other text to whole ones."""
    world_size = _world_size(writers)
    ranks = {rank for writer in writers for rank in writer.ranks_of(world_size)}
    is_complete = 0 < world_size == len(ranks)
    processes = Counter(writer.host for writer in writers)
    whole: defaultdict[int, list[_Writer]] = defaultdict(list)
    for writer in writers:
        if writer.places:
            whole[writer.pid].append(writer)
    kept = []
    for writer in writers:
        is_known = writer.places or writer.rank >= 0 or not writer.pid
        of = [one for one in whole[writer.pid] if _is_of(writer, one, is_complete=is_complete)]
        if len(of) == 1 and not is_known:
            of[0].log.add(writer.log)
            # The line that tells the rank may be the damaged one.
            of[0].host = max(of[0].host, writer.host, key=processes.__getitem__)
        else:
            kept.append(writer)
    return kept


def _is_of(fragment: _Writer, whole: _Writer, *, is_complete: bool) -> bool:
    """Say whether a process is another one of its number under a damaged name.

    Only where the communicator of all ranks is complete may a part in its middle be missing, or
    the name be that of another host: processes of two hosts can have one number.
    """
    part, name = fragment.host, whole.host
    if part.endswith(name) or name.endswith(part):
        return True
    if is_complete and fragment.device == whole.device >= 0:
        return True
    cuts = range(1, len(part)) if is_complete else ()
    return any(name.startswith(part[:at]) and name.endswith(part[at:]) for at in cuts)


def _placed(
    writers: Iterable[_Writer], world_size: int
) -> tuple[dict[int, list[_Writer]], list[_Writer]]:
    """Return the writers of each rank, and those whose rank is unknown."""
    placed: dict[int, list[_Writer]] = {}
    unplaced = []
    for writer in writers:
        rank, *more = sorted(writer.ranks_of(world_size)) or [writer.rank]
        if rank < 0:
            unplaced.append(writer)
        else:
            placed.setdefault(rank, []).append(writer)
        for one in more:  # what a process of several ranks says is kept once
            placed.setdefault(one, []).append(_Writer(host=writer.host, pid=writer.pid))
    return placed, unplaced


def _rank(rank: int, writers: Iterable[_Writer], note: str) -> LoggedRank:
    log, host, pid = RankLog(), "", 0
    for writer in writers:
        log.add(writer.log)
        host, pid = writer.host or host, writer.pid or pid
    log.host = host
    return LoggedRank(rank, host, pid, log, note)


def _share(logs: list[RankLog], nobody: _Writer | None) -> None:
    """Give all ranks what one line says for all: the version of NCCL, the allocator's settings."""
    versions = {version for log in logs for version in log.values("version")}
    for log in logs:
        if len(versions) == 1 and not log.values("version"):
            log.say("version", min(versions))
        if nobody is not None and not log.allocator_settings:
            log.allocator_settings = nobody.log.allocator_settings
