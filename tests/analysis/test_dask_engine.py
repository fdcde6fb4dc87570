"""Ranks are read by Dask; what ends a worker or keeps it from reading is named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from operator import add
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock

import pytest

from dsprof._version import __version__
from dsprof.analysis.dask_engine import DaskEngine, _wait_for_workers
from dsprof.analysis.engine import Job, unshown
from dsprof.cli.loading import Reading, load_diagnosis
from dsprof.diagnosis.document import to_json
from dsprof.errors import DsprofError
from tests.analysis.tasks import (
    HONEST,
    JOB,
    KILLER,
    WAIT,
    beside,
    bottomless,
    deadly,
    greedy,
    lost,
    lost_beside,
    survivors,
    unsurvived,
    waiting_first,
)
from tests.beside import ROOT
from tests.dask_cluster import address_of
from tests.dask_cluster import cluster as started_cluster
from tests.factories.trace_files import write_run
from tests.ports import free_port


@pytest.fixture(scope="module", params=[1, 2], ids=["1 worker", "2 workers"])
def cluster(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a cluster of this machine."""
    with started_cluster(request.param) as found:
        yield address_of(found)


@pytest.mark.dist
def test_a_worker_that_dies_is_replaced(cluster: str, tmp_path: Path) -> None:
    assert deadly(DaskEngine(cluster), tmp_path / "8.once") == list(range(1, 11))


@pytest.mark.dist
def test_only_the_task_that_kills_workers_is_lost(cluster: str, tmp_path: Path) -> None:
    assert deadly(DaskEngine(cluster), tmp_path / "8.always") == [*range(1, 8), -8, 9, 10]


@pytest.mark.dist
def test_what_is_read_again_beside_the_task_that_kills_is_not_lost() -> None:
    """Dask blames a task after two deaths of its worker, whose results are lost with it."""
    is_read = Event()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        started_cluster(1, threads=2) as found,
    ):

        def direct() -> None:
            begun: dict[bytes, socket.socket] = {}

            def kill(process: socket.socket) -> None:
                with process:
                    process.sendall(b"!")
                    process.recv(1)

            def wait_for(name: bytes) -> socket.socket:
                while name not in begun:
                    one = listener.accept()[0]
                    begun[one.recv(16)] = one
                return begun.pop(name)

            for _ in range(2):
                wait_for(HONEST).close()
                is_read.wait()
                kill(wait_for(KILLER))
                with wait_for(HONEST):
                    kill(wait_for(KILLER))
            wait_for(HONEST).close()

        def told(done: int, total: int) -> None:
            is_read.set()

        directing = Thread(target=direct, daemon=True)
        directing.start()
        port = listener.getsockname()[1]
        result = DaskEngine(address_of(found)).merged(
            Job(beside, add, lost_beside), [(HONEST, port), (KILLER, port)], told
        )
        directing.join()
    assert sorted(result) == [HONEST, b"lost " + KILLER]


@pytest.mark.dist
def test_an_error_with_a_deep_traceback_ends_the_report(cluster: str) -> None:
    with pytest.raises(RecursionError) as caught:
        DaskEngine(cluster).merged(Job(bottomless, add, bottomless), [1], unshown)
    assert caught.traceback[-1].name == "bottomless"


@pytest.mark.dist
def test_a_worker_without_memory_ends_the_report(cluster: str) -> None:
    with pytest.raises(MemoryError):
        DaskEngine(cluster).merged(Job(greedy, add, lost), [1], unshown)
    tasks = [(number, None) for number in range(3)]  # at least two on one worker
    with pytest.raises(DsprofError, match=r"killed while they merged.*with more memory"):
        DaskEngine(cluster).merged(Job(survivors, unsurvived, lost), tasks, unshown)


@pytest.mark.dist
def test_workers_that_are_all_gone_end_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsprof.analysis.dask_engine._LOOK_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener, started_cluster(1) as found:

        def scale_down() -> None:
            with listener.accept()[0]:
                monkeypatch.setattr("dsprof.analysis.dask_engine._PATIENCE_S", 0.1)
                found.scale(0)
                found.sync(found._correct_state)

        scaling = Thread(target=scale_down)
        scaling.start()
        with pytest.raises(DsprofError, match=r"has no workers; start some with dask worker"):
            DaskEngine(address_of(found)).merged(WAIT, [listener.getsockname()[1]], unshown)
        scaling.join()


@pytest.mark.dist
def test_workers_that_go_with_what_they_merged_end_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dsprof.analysis.dask_engine._LOOK_S", 0.1)
    from distributed import Client

    gather = Client.gather
    with started_cluster(1) as found:

        def gather_too_late(*args: Any, **kwargs: Any) -> Any:
            monkeypatch.setattr("dsprof.analysis.dask_engine._PATIENCE_S", 0.1)
            found.scale(0)
            found.sync(found._correct_state)
            return gather(*args, **kwargs)

        monkeypatch.setattr(Client, "gather", gather_too_late)
        with pytest.raises(DsprofError, match=r"has no workers; start some with dask worker"):
            DaskEngine(address_of(found)).merged(Job(abs, add, abs), [-1], unshown)


@pytest.mark.dist
def test_a_scheduler_that_goes_ends_the_report_in_one_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"distributed.comm.timeouts.connect": "1s"}
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        started_cluster(1, **settings) as found,
    ):

        def close() -> None:
            with listener.accept()[0]:
                found.close()

        closing = Thread(target=close)
        closing.start()
        with pytest.raises(DsprofError, match=r"scheduler at .* does not answer any more"):
            DaskEngine(address_of(found)).merged(WAIT, [listener.getsockname()[1]], unshown)
        closing.join()
    assert not [one.getMessage() for one in caplog.records if one.name == "distributed.client"]


def test_a_scheduler_that_goes_while_workers_are_looked_for_is_named() -> None:
    client = Mock()
    client.scheduler.address = "tcp://host:8786"
    client.wait_for_workers.side_effect = ConnectionRefusedError
    with pytest.raises(DsprofError, match=r"tcp://host:8786 does not answer any more"):
        _wait_for_workers(client)


_OTHER = """
import dsprof.analysis.dask_engine, dsprof.trace.source

def blind(path):
    raise FileNotFoundError(2, "No such file or directory", str(path))

def dask_setup(worker):
    if str(worker.name) == "1":
        dsprof.trace.source.open_input = blind
        dsprof.analysis.dask_engine.__version__ = VERSION
"""


@contextmanager
def cluster_with_other(folder: Path, workers: int, version: str = __version__) -> Iterator[Any]:
    """Start a cluster whose second worker sees no traces, and has some version of dsprof."""
    preload = folder / "other.py"
    preload.write_text(_OTHER.replace("VERSION", repr(version)))
    with started_cluster(workers, **{"distributed.worker.preload": [str(preload)]}) as found:
        yield found


@pytest.mark.dist
def test_a_worker_that_cannot_open_the_traces_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 4)
    with cluster_with_other(tmp_path, 2) as found:
        reading = Reading(f"dask://{address_of(found)}")
        told = r"^worker tcp://\S+ cannot open the traces \(.*rank00000.*No such file.*same path"
        with pytest.raises(DsprofError, match=told):
            load_diagnosis([tmp_path / "run"], reading=reading)


@pytest.mark.dist
def test_a_worker_that_comes_later_with_another_dsprof_is_named(tmp_path: Path) -> None:
    is_over = Event()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        cluster_with_other(tmp_path, 1, "0.0.1") as found,
    ):

        def grow() -> None:
            with listener.accept()[0]:
                found.scale(2)
                is_over.wait()

        growing = Thread(target=grow)
        growing.start()
        tasks = [listener.getsockname()[1], *[0] * 7]
        job = Job(waiting_first, add, waiting_first)
        try:
            with pytest.raises(DsprofError, match=r"worker tcp://\S+ has dsprof 0\.0\.1; install"):
                DaskEngine(address_of(found)).merged(job, tasks, lambda *_: is_over.set())
        finally:
            is_over.set()
            growing.join()


@pytest.mark.dist
def test_a_worker_without_a_plugin_is_named(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker that another test has killed would start with the path of this process.
    DaskEngine(cluster).merged(JOB, [(0, None)], unshown)
    (tmp_path / "only_here.py").write_text("def work(task): return [task]")
    monkeypatch.syspath_prepend(tmp_path)
    work = import_module("only_here").work
    told = (
        r"worker tcp://\S+ cannot load dsprof or a plugin \(No module named 'only_here'\); install"
    )
    with pytest.raises(DsprofError, match=told):
        DaskEngine(cluster).merged(Job(work, add, work), [1], unshown)


_SCHEDULER = """
import sys
sys.modules["dsprof"] = None
from distributed.cli.dask_scheduler import main
main()
"""


@pytest.mark.dist
def test_a_scheduler_without_dsprof_is_named() -> None:
    host, port = "127.0.0.1", str(free_port())
    address = f"{host}:{port}"
    python, quiet = sys.executable, ["--no-dashboard"]
    scheduler = [python, "-c", _SCHEDULER, "--host", host, "--port", port, *quiet]
    worker = [python, "-m", "dask", "worker", address, "--nthreads", "1", "--no-nanny", *quiet]
    commands = (scheduler, worker)
    started = [subprocess.Popen(one, cwd=ROOT, stderr=subprocess.DEVNULL) for one in commands]
    try:
        with pytest.raises(DsprofError, match=r"^the Dask scheduler cannot load dsprof.*; install"):
            DaskEngine(address).merged(JOB, [(1, None)], unshown)
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.dist
def test_dask_says_the_same_as_one_process(cluster: str, tmp_path: Path) -> None:
    write_run(tmp_path, 5)
    (tmp_path / "trace.rank00001.json").write_bytes(b"no trace")
    here = load_diagnosis([tmp_path])
    there = load_diagnosis([tmp_path], reading=Reading(f"dask://{cluster}"))
    assert to_json(there) == to_json(here)
    assert any("rank00001" in line for line in there.quality.strangers)


_DEADLY = """
import os, signal
from dsprof.analysis import pool
from dsprof.trace.run import read_rank

def deadly(files):
    if "rank00004" in str(files.path):
        os.kill(os.getpid(), signal.SIGKILL)
    return read_rank(files)

pool.read_rank = deadly
"""


@pytest.mark.dist
@pytest.mark.long
def test_a_report_names_what_kills_workers_what_is_cut_and_what_is_missing(tmp_path: Path) -> None:
    run, preload = tmp_path / "run", tmp_path / "deadly.py"
    paths = write_run(run, 6)
    os.truncate(paths[1], paths[1].stat().st_size * 2 // 3)
    os.utime(paths[1], (0, 0))  # or it may still be written
    paths[2].unlink()
    preload.write_text(_DEADLY)
    with started_cluster(2, **{"distributed.worker.preload": [str(preload)]}) as found:
        reading = Reading(f"dask://{address_of(found)}")
        quality = load_diagnosis([run], reading=reading).quality
    assert quality.unclean_ranks == [1]
    assert quality.missing_ranks == [2, 4]
    [line] = quality.strangers
    assert "trace.rank00004.json: reading it killed the process" in line


@pytest.mark.parametrize("address", ["ray://here:1", "dask://here", "dask://user:word@here:1"])
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    write_run(tmp_path, 1)
    with pytest.raises(DsprofError, match="dask://HOST:PORT") as caught:
        load_diagnosis([tmp_path], reading=Reading(address))
    assert "word" not in str(caught.value)


def test_a_scheduler_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dsprof.analysis.dask_engine._PATIENCE_S", 0.2)
    monkeypatch.setattr("dsprof.analysis.dask_engine._SOON_S", 0)
    with pytest.raises(DsprofError, match=r"no Dask scheduler answers at 127.0.0.1:1"):
        DaskEngine("127.0.0.1:1").merged(JOB, [(1, None)], unshown)
    said = "dsprof: waiting for the Dask scheduler at 127.0.0.1:1 to answer, 0.2 s at most\n"
    assert capsys.readouterr().err == said
