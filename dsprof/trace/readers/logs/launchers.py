"""What launchers say in a log of failed processes: torchrun, DeepSpeed's, Slurm, MPI and Ray."""

from __future__ import annotations

import re
from signal import Signals

from dsprof.trace.rank_log import HOST_MEMORY, OF_RAY, RAY_MEMORY

MARKS = (
    *(b"rank      :", b"exitcode  :", b"Root Cause (first observed failure)"),
    *(b" exits with return code = ", b":main] cmd = ", b" CANCELLED AT ", b"srun: error: "),
    *(b"kill event", b" death signal, ", b" noticed that process rank ", b"] Signal: "),
    *(b"failed (exitcode: ", b"CalledProcessError: Command ", b" got signal: "),
    *(b" died from signal ", b"   EXIT CODE: ", b" EXIT STRING: ", b" KILLED BY SIGNAL: "),
    *(b" Caught signal ", b": line ", b"process has died. Worker exit type: SYSTEM_ERROR"),
    *(b"emory pressure (OOM)", b"node running low on memory"),
)

_RANK = re.compile(r"(?:^|\s)\srank      : (\d{1,6}) \(local_rank: \d+\)")
_EXIT_CODE = re.compile(r"(?:^|\s)\sexitcode  : (-?\d{1,5}) \(pid: \d+\)")
_ROOT_CAUSE = "Root Cause (first observed failure)"
_LAUNCHED = re.compile(r"\[runner\.py:\d{1,5}:main\] cmd = (?:.*--node_rank=(?P<node>\d{1,9}))?")
# Programs also run compilers, git and pip; those that start launchers only repeat what these say.
_OF_PYTHON = (
    r"'\['[^']{0,999}\bpython[\d.]{0,9}', "
    r"(?!'-c'|'-m', '(?:torch\.distributed|deepspeed|pip')|'[^']{0,999}\bsetup\.py').*'"
)
_RETURN_CODE = re.compile(
    r"\] exits with return code = (-?\d{1,5})$"
    r"|\bfailed \(exitcode: (-?\d{1,5})\) local_rank: \d{1,5} \(pid: \d{1,10}\) of binary"
    rf"|\bCalledProcessError: Command {_OF_PYTHON} returned non-zero exit status (\d{{1,3}})\.$"
    r"|^=   EXIT CODE: ([12])$"
)
_SIGNAL = re.compile(
    rf"\bCalledProcessError: Command {_OF_PYTHON} died with <Signals\.\w+: (\d{{1,2}})>\.$"
    # mpiexec ends the others by SIGTERM.
    r"|: rank \d{1,7} died from signal (?!15\b)(\d{1,2})\b"
    r"|APPLICATION TERMINATED WITH THE EXIT STRING: [\w ]{1,40} \(signal (?!15\b)(\d{1,2})\)"
    r"|^=   KILLED BY SIGNAL: (?!15\b)(\d{1,2}) "
    r"|\d\] Caught signal (\d{1,2}) \("  # UCX
)
_OF_SHELL = re.compile(
    r": line \d{1,6}: {1,9}\d{1,10} (?P<how>Killed|Segmentation fault|Bus error|Aborted)\b"
    # A script that ends its own monitors says the same of them.
    r".{0,99}?(?:\$|\b(?:python|torchrun|deepspeed|accelerate|mpirun|mpiexec|srun))"
)
_TASK = re.compile(
    # A shell reports a signal by a code above 128: such a task was ended.
    r"^srun: error: \S+: tasks? [\d,-]{1,99}: "
    r"(?:Exited with exit code (?P<code>[1-9]\d?)|(?P<how>Out Of Memory|Segmentation fault|"
    r"Bus error|Aborted)(?: \(core dumped\))?)$"
)
_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Aborted": "SIGABRT",
    "Killed": "SIGKILL",
}
_OF_MPI = re.compile(r"^\[[^\]\s]{1,255}:\d{1,10}\] Signal: [A-Z][\w ]{1,60} \((\d{1,2})\)$")
_NOTICED = re.compile(
    r"\b(?:mpirun|mpiexec|orterun|prterun) noticed that process rank (?P<rank>\d{1,6}) with PID "
    r"\d{1,10} on node \S{1,255} exited on signal (?P<signal>\d{1,2})\b"
)
_OOM_KILL = re.compile(r"\berror: Detected \d{1,9} oom[-_]kill event")
_CANCELLED = re.compile(
    r"\berror: \*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ "
    r"(?:DUE TO (?P<cause>[A-Z ]{1,40})(?:, [A-Za-z ]{1,60})? |DUE to SIGNAL \w+ )?\*\*\*"
)

_ASKED_TO_END = re.compile(
    r"(?:\]|api:|\bWARNING:) ?Received (1|15) death signal, shutting down workers"
    r"|\bSignalException: Process \d{1,10} got signal: (1|15)$"
)


class ElasticList:
    """Follows torchrun's lists of failed ranks, one of each agent, whose lines may interleave.

    `rank` is that of the last line of a list, -1 before the first; `failed_first` says how that
    rank failed, "" unless the line told it and the agent saw no other fail before.
    """

    def __init__(self) -> None:
        self.rank = -1
        self.failed_first = ""
        self._ranks: dict[int, int] = {}  # by what precedes the lines of an agent
        self._root_causes: set[int] = set()

    def take(self, label: int, text: str) -> bool:
        """Take a line that a launcher marked with `label`; say whether it is of a rank."""
        self.failed_first = ""
        if match := _RANK.search(text):
            self.rank = self._ranks[label] = int(match[1])
            return True
        if _ROOT_CAUSE in text:
            self._root_causes.add(label)
        elif label in self._root_causes and (match := _EXIT_CODE.search(text)):
            self._root_causes.remove(label)
            self.rank = self._ranks.get(label, -1)
            self.failed_first = _how(int(match[1]))
            return self.rank >= 0
        return False


def launched(text: str) -> str | None:
    """Return the node on which DeepSpeed's launcher starts a job, "" if one starts all of them.

    None for any other line.
    """
    match = _LAUNCHED.search(text)
    return None if match is None else match["node"] or ""


def failed(text: str) -> str:
    """Return how a process of unknown rank failed, as a launcher or library says; "" otherwise."""
    if match := _OF_MPI.search(text):
        return _how(-int(match[1]))
    if match := _RETURN_CODE.search(text):
        return _how(int(match[match.lastindex or 0]))
    if match := _SIGNAL.search(text):
        return _how(-int(match[match.lastindex or 0]))
    if match := _OF_SHELL.search(text):
        return f"signal {_SIGNALS[match['how']]}"
    if "emory pressure (OOM)" in text or "node running low on memory" in text:
        return RAY_MEMORY
    if "process has died. Worker exit type: SYSTEM_ERROR" in text:
        return OF_RAY
    if match := _TASK.search(text):
        if match["code"]:
            return _how(int(match["code"]))
        return f"signal {_SIGNALS[how]}" if (how := match["how"]) in _SIGNALS else HOST_MEMORY
    return HOST_MEMORY if _OOM_KILL.search(text) else ""


def noticed(text: str) -> tuple[int, str] | None:
    """Return which rank mpirun saw fail first, and how; None for any other line."""
    match = _NOTICED.search(text)
    return None if match is None else (int(match["rank"]), _how(-int(match["signal"])))


def cancelled(text: str) -> str:
    """Return why Slurm ended a job or a step of it, in lower case, or which signal torchrun got.

    "" for any other line.
    """
    if match := _ASKED_TO_END.search(text):
        return Signals(int(match[1] or match[2])).name
    match = _CANCELLED.search(text)
    return "" if match is None else (match["cause"] or "cancelled").lower()


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
