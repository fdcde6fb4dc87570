"""Reads the ranks of a run on the workers of a Dask cluster, which merge what they found."""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from pickle import dumps, loads
from queue import Empty, SimpleQueue
from threading import Timer
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dsprof._version import __version__
from dsprof.analysis.engine import Job, Progress, fold, parted
from dsprof.analysis.freed_memory import kept_freed_memory
from dsprof.errors import DsprofError, TraceError
from dsprof.trace.source import is_readable, read_start

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
R = TypeVar("R")

SCHEME = "dask://"
_PATIENCE_S = 60
_SOON_S = 2
_LOOK_S = 10
"""How often to see whether a scheduler has workers: without any, Dask waits forever."""

_INSTALL = "install dsprof {} and the same plugins on the scheduler and all workers"
_MISSING = "--engine dask:// needs dask.distributed: pip install 'dsprof[scale]'"


class DaskEngine:
    """The scheduler at an address, `host:port`; TLS and the like come from Dask's own settings."""

    def __init__(self, address: str) -> None:
        self._address = address

    def merged(self, job: Job[T, R], tasks: Sequence[T], progress: Progress) -> R:
        """Return what all tasks give; only the last merge is done here.

        The scheduler repeats what a worker that dies has done, or was to do.
        """
        with self._client() as client, _plain_errors(self._address):
            needs = _needs(client, job, tasks)
            # Merged when all are read: a merge beside a task that kills its worker dies with it.
            return _merged(client, job, _read(client, job, tasks, needs, progress))

    @contextmanager
    def _client(self) -> Iterator[Client]:
        """Connect, and see that there are workers.

        Raises:
            DsprofError: there are none.
        """
        try:
            from distributed import Client
        except ImportError:
            raise DsprofError(_MISSING) from None
        # It logs a traceback of what `_plain_errors` says.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        try:
            with _said_when_long(f"the Dask scheduler at {self._address} to answer"):
                client = Client(self._address, timeout=_PATIENCE_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise DsprofError(f"no Dask scheduler answers at {self._address}: {error}") from None
        with client:
            _wait_for_workers(client)
            yield client


@contextmanager
def _said_when_long(what: str) -> Iterator[None]:
    """Say on stderr what is waited for, and how long at most."""
    text = f"dsprof: waiting for {what}, {_PATIENCE_S:g} s at most"
    saying = Timer(_SOON_S, print, [text], {"file": sys.stderr})
    saying.daemon = True
    saying.start()
    try:
        yield
    finally:
        saying.cancel()


def _wait_for_workers(client: Client) -> None:
    """Return at once if there are workers.

    Raises:
        DsprofError: none has come, or the scheduler does not answer.
    """
    try:
        with _said_when_long("workers of the Dask scheduler"):
            client.wait_for_workers(1, timeout=_PATIENCE_S)
    except TimeoutError:
        address = client.scheduler.address
        raise DsprofError(
            f"the Dask scheduler at {address} has no workers; start some with "
            f"dask worker {address}, and repeat the command"
        ) from None
    except OSError:
        raise DsprofError(_gone(client.scheduler.address)) from None


def _gone(address: str) -> str:
    return (
        f"the Dask scheduler at {address} does not answer any more; start it again, and "
        "repeat the command"
    )


def _finished(client: Client, futures: Collection[Any]) -> Iterator[Any]:
    """Yield futures in the order in which they finish.

    Raises:
        DsprofError: all workers are gone.
    """
    finished: SimpleQueue[Any] = SimpleQueue()
    for future in futures:
        future.add_done_callback(finished.put)
    left = len(futures)
    while left:
        try:
            future = finished.get(timeout=_LOOK_S)
        except Empty:
            _wait_for_workers(client)
        else:
            left -= 1
            yield future


@contextmanager
def _plain_errors(address: str) -> Iterator[None]:
    """Say in dsprof's words what happened to the cluster.

    Raises:
        DsprofError: no worker survived a merge, or the scheduler is gone.
    """
    from distributed import CancelledError, KilledWorker

    try:
        yield
    except KilledWorker:
        raise DsprofError(
            "Dask workers were killed while they merged what they had read, probably because "
            "memory ran out; start workers with more memory"
        ) from None
    except CancelledError:
        raise DsprofError(_gone(address)) from None


class Needs(NamedTuple):
    """What a process of the cluster needs, to read the ranks of a report as this process does."""

    report: str
    version: str
    file: Path | None = None


@lru_cache
def check(needs: Needs) -> None:
    """See, once in a report, that this process has what it needs.

    Raises:
        DsprofError: it has not; the message lacks the process, its subject.
    """
    if needs.version != __version__:
        raise DsprofError(f"has dsprof {__version__}; {_INSTALL.format(needs.version)}")
    try:
        if needs.file is not None:
            read_start(needs.file, 1)
    except TraceError as error:
        raise DsprofError(
            f"cannot open the traces ({error}); make them readable at the same path on all workers"
        ) from None


def _needs(client: Client, job: Job[T, R], tasks: Sequence[T]) -> Needs:
    """Return what the cluster needs; a file that is gone here, too, is skipped.

    Raises:
        DsprofError: a worker or the scheduler lacks something.
    """
    files = () if job.files_of is None else map(job.files_of, tasks)
    readable = (one.path for one in files if is_readable(one.path))
    needs = Needs(client.id, __version__, next(readable, None))
    for worker, error in client.run(check, needs, on_error="return").items():
        if error is not None:
            raise _lack(f"worker {worker}", error)
    try:
        client.run_on_scheduler(check, needs._replace(file=None))
    except (DsprofError, ImportError, AttributeError) as error:
        raise _lack("the Dask scheduler", error) from None
    return needs


def _lack(process: str, error: Exception) -> DsprofError:
    if not isinstance(error, DsprofError):
        remedy = _INSTALL.format(__version__)
        error = DsprofError(f"cannot load dsprof or a plugin ({error}); {remedy}")
    return DsprofError(f"{process} {error}")


def _read(
    client: Client, job: Job[T, R], tasks: Sequence[T], needs: Needs, progress: Progress
) -> list[Any]:
    """Return the futures of what parts of the tasks gave.

    Dask blames all tasks of a worker that dies, also those that it repeats because a worker took
    their results with it: they are tried again, each with nothing new beside it.
    """
    parts = parted(tasks, sum(client.nthreads().values()))
    worked = partial(_worked, needs)

    def submit(work: Callable[[Any], R], task: object) -> Any:
        # Packed: a process that cannot load a plugin would end where Dask unpacks it.
        return client.submit(worked, dumps((work, task)), pure=False)

    held = {submit(job.of_part, part): (job.work, part) for part in parts}
    done = 0
    for future in _finished(client, held):
        if not _has_killed(future):
            done += len(held[future][1])
            progress(done, len(tasks))
    while killed := [future for future in _finished(client, held) if _has_killed(future)]:
        again = [held.pop(future) for future in killed]
        left = [(call, task) for call, part in again for task in part]
        for done, (call, task) in enumerate(left, len(tasks) - len(left) + 1):
            [future] = _finished(client, [submit(call, task)])
            if _has_killed(future):
                future, call = submit(job.lost, task), job.lost
            held[future] = call, [task]
            progress(done, len(tasks))
    return list(held)


def _merged(client: Client, job: Job[T, R], parts: Sequence[Any]) -> R:
    """Merge on each worker what it holds, then in pairs until two are left; merge these here."""
    held = defaultdict(list)
    places = client.who_has(parts)
    for part in parts:
        held[places[part.key]].append(part)
    whole = [client.submit(fold, mine, job.merge, pure=False) for mine in held.values()]
    while len(whole) > 2:
        pairs = [whole[place : place + 2] for place in range(0, len(whole), 2)]
        whole = [client.submit(fold, pair, job.merge, pure=False) for pair in pairs]
    found: list[R] = _gathered(client, [*_finished(client, whole)])
    return fold(found, job.merge)


def _gathered(client: Client, futures: Sequence[Any]) -> list[Any]:
    """Return what futures that are finished hold, in their order.

    Raises:
        DsprofError: all workers are gone, and what they held with them.
    """
    thread = ThreadPoolExecutor(1)
    fetched = thread.submit(client.gather, futures)
    thread.shutdown(wait=False)
    while wait([fetched], timeout=_LOOK_S).not_done:
        _wait_for_workers(client)
    results: list[Any] = fetched.result()
    return results


def _worked(needs: Needs, packed: bytes) -> object:
    """Work, on a worker that may have come after the others were checked.

    Dask cannot send a deep traceback, and its client would wait for it forever.

    Raises:
        DsprofError: this worker lacks something.
    """
    from distributed import get_worker

    try:
        check(needs)
        work, task = loads(packed)  # noqa: S301 - this module packed it
    except (DsprofError, ImportError) as error:
        raise _lack(f"worker {get_worker().address}", error) from None
    try:
        with kept_freed_memory():
            return work(task)
    except RecursionError as error:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        raise error.with_traceback(place) from None


def _has_killed(future: Any) -> bool:
    """Say whether each worker that tried a task died.

    Raises:
        Exception: the task itself failed.
    """
    from distributed import KilledWorker

    error = future.exception()  # when it is done
    if error is not None and not isinstance(error, KilledWorker):
        raise error
    return error is not None
