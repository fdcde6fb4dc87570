"""Dask on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dask.config import set as dask_settings
from distributed import LocalCluster

_SETTINGS = {
    "distributed.scheduler.allowed-failures": 1,
    "distributed.diagnostics.nvml": False,
    # A worker that is dead so long after an earlier death is not started again.
    "distributed.deploy.lost-worker-timeout": "1 hour",
}


@contextmanager
def cluster(workers: int, threads: int = 1, **settings: object) -> Iterator[LocalCluster]:
    """Start workers of so many threads each, which inherit the environment."""
    with (
        dask_settings(_SETTINGS, **settings),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as started,
    ):
        yield started


def address_of(started: LocalCluster) -> str:
    """Return the host and port of the scheduler."""
    return started.scheduler_address.removeprefix("tcp://")
