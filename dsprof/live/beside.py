"""Follows the run of the training process that started this one, for Prometheus and alerts.

It ends after the run, or a minute after its ranks have stopped writing.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

from dsprof.errors import DsprofError
from dsprof.live.now import RunNow
from dsprof.live.watching import SELDOM_S, Watched, repeat

_LOCK = ".alerts.lock"
_GONE_S = 60.0
_PARENT_S = 0.5
_TURNS = 10
"""The process of an earlier epoch has this many seconds to end if it has nothing to follow."""
_NICE = 10
"""It shares the cores with training."""


def main() -> int:
    """Follow the run in a folder; the arguments are the folder, a port and a file, "" for none."""
    folder, port, file = sys.argv[1:]
    os.nice(_NICE)
    try:
        _follow(Path(folder), port, file)
    except DsprofError as error:
        print(f"dsprof: {error}", file=sys.stderr)
        return 2
    return 0


def _follow(folder: Path, port: str, file: str) -> None:
    if file and not is_first(folder):
        file = ""
    if not (port or file):
        return
    watched, ended = Watched([folder]), Event()
    shows: list[Callable[[RunNow], object]] = []
    if file:
        from dsprof.config.alerts import load_alerts
        from dsprof.live.alerts import Alerts

        alerts = Alerts(load_alerts(Path(file)))
        shows.append(alerts.show)
    if port:
        shows.append(_to_prometheus(watched, int(port)))
    shows.append(End(watched, ended).show)
    Thread(target=_let_go_of_output, args=(os.getppid(), ended), daemon=True).start()
    repeat(watched, ended, lambda now: [show(now) for show in shows], SELDOM_S)
    if file:
        alerts.close()


def is_first(folder: Path) -> bool:
    """Say whether no other process sends alerts of this folder; from then on this one does.

    After a restart the one of the epoch before goes on, and knows what it has sent.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(folder / _LOCK, flags, 0o600)  # the end of this process closes it
        for _ in range(_TURNS):
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            sleep(1)
    except OSError:  # the file system has no locks: better twice than never
        return True
    os.close(lock)
    return False


def _to_prometheus(watched: Watched, port: int) -> Callable[[RunNow], object]:
    try:
        from dsprof.live.metrics import RunCollector, listen
    except ImportError:
        raise DsprofError(
            "metrics_port needs prometheus_client: pip install 'dsprof[metrics]'"
        ) from None
    collector = RunCollector()
    listen(collector, "127.0.0.1", port)
    return lambda now: collector.show(now, watched.totals)


class End:
    """Says when there is nothing more to follow."""

    def __init__(self, watched: Watched, ended: Event) -> None:
        self._watched, self._ended = watched, ended
        self._lived_at = monotonic()

    def show(self, now: RunNow) -> None:
        """Look at the state of the run."""
        if any(rank.state == "running" for rank in now.ranks):
            self._lived_at = monotonic()
        is_gone = any(rank.state == "gone" for rank in now.ranks)  # a restart may follow
        is_told = now.is_over and not is_gone and (self._watched.judge.is_done or now.judge_failure)
        if is_told or monotonic() - self._lived_at > _GONE_S:
            self._ended.set()


def _let_go_of_output(parent: int, ended: Event) -> None:
    """Close the output when training ends, so that its reader does not wait for this process."""
    while os.getppid() == parent:
        if ended.wait(_PARENT_S):
            return
    with suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
