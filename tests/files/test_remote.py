from __future__ import annotations

import gzip
import os
import socket
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import dsprof
from dsprof.__main__ import main
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.summarise import summarise
from dsprof.cli.loading import Reading, load_diagnosis
from dsprof.diagnosis.document import to_json
from dsprof.errors import TraceError
from dsprof.files import remote
from dsprof.files.inputs import entries, input_path, open_input
from dsprof.trace import trace_files
from dsprof.trace.rolling.parts import KEPT, SERIES, TAILS
from dsprof.trace.run import find_run, read_run
from dsprof.trace.source import Source
from tests.dask_cluster import address_of, cluster
from tests.factories.month import FastMotion
from tests.factories.trace_files import write_run
from tests.files.store import SECRET, Store, answering, refusing, serving, webhdfs

s3fs = pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")
pytest.importorskip("flask_cors")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list]]:
    application = moto_server.DomainDispatcherApplication(moto_server.create_backend_app)
    with serving(application) as served:
        yield served


@pytest.fixture
def store(server, monkeypatch) -> Iterator[Store]:
    _point_at(server[0], monkeypatch)
    monkeypatch.setenv("DSPROF_CACHE", "off")
    store = Store(*server)
    store.files.call_s3("create_bucket", Bucket="bucket")
    yield store
    s3fs.S3FileSystem.clear_instance_cache()
    for name in store.files.find("bucket"):
        store.delete(name.removeprefix("bucket/"))


def _point_at(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def _large(folder: Path, nbytes: int) -> Path:
    [path] = write_run(folder, 1)
    lines = path.read_bytes().removesuffix(b"\n]\n")
    filler = b',\n{"cat":"note","args":{"text":"' + b"x" * 1000 + b'"}}'
    path.write_bytes(lines + filler * (nbytes // len(filler)) + b"\n]\n")
    return path


def test_a_run_on_a_store_is_judged_as_on_disk(store, tmp_path):
    write_run(tmp_path, 2)
    there = load_diagnosis([input_path(store.fill(tmp_path))])
    here = load_diagnosis([tmp_path])
    assert there.verdict == here.verdict
    assert there.findings == here.findings
    assert there.steps == here.steps


def test_only_the_ranks_asked_for_are_read(store, tmp_path):
    write_run(tmp_path, 64)
    address = store.fill(tmp_path)
    assert main(["report", address, "--ranks", "0-3", "--format", "text"]) == 0
    assert set(store.reads()) == {f"run/trace.rank{rank:05d}.json" for rank in range(4)}


def test_a_start_costs_little_and_all_of_it_few_requests(store, tmp_path):
    path = _large(tmp_path, 20 << 20)
    address = input_path(store.fill(tmp_path)) / path.name
    run = find_run([address])
    assert sum(store.reads().values()) == 1 << 17
    [trace] = read_run(run)
    assert trace.nbytes == path.stat().st_size
    assert sum(store.reads().values()) == path.stat().st_size
    assert sum(one.method == "GET" for one in store.requests) < 10


def test_the_second_reading_takes_the_columns_from_the_cache(store, tmp_path, monkeypatch):
    monkeypatch.setenv("DSPROF_CACHE", str(tmp_path / "cache"))
    path = _large(tmp_path / "run", 5 << 20)
    address = store.fill(path.parent)
    [first] = read_run(find_run([address]))
    store.requests.clear()
    [second] = read_run(find_run([address]))
    assert second.notes == first.notes
    assert sum(store.reads().values()) == 0
    store.put(f"run/{path.name}", path.read_bytes().replace(b"xxxx", b"yyyy"))
    [third] = read_run(find_run([address]))
    assert third.notes != first.notes


def test_each_reading_asks_once_for_a_small_object(store, tmp_path):
    paths = write_run(tmp_path, 20)
    run = find_run([store.fill(tmp_path)])
    s3fs.S3FileSystem.clear_instance_cache()  # as another process
    store.requests.clear()
    assert len(list(read_run(run))) == 20
    for path in paths:
        asked = [one.method for one in store.requests if one.path.endswith(path.name)]
        assert sorted(asked) in (["HEAD"], ["GET", "HEAD"])  # the newest starts are still there


@pytest.mark.dist
def test_dask_reads_a_store_as_this_process_does(store, tmp_path):
    paths = write_run(tmp_path, 6)
    os.truncate(paths[1], paths[1].stat().st_size * 2 // 3)
    paths[2].unlink()
    address = input_path(store.fill(tmp_path))
    here = load_diagnosis([address])
    with cluster(2) as started:
        there = load_diagnosis([address], reading=Reading(f"dask://{address_of(started)}"))
    assert to_json(there) == to_json(here)
    assert there.quality.unclean_ranks == [1]
    assert there.quality.missing_ranks == [2]


def test_each_part_of_a_rolling_recording_is_asked_for_once(store, tmp_path):
    for rank in range(2):
        one = FastMotion(tmp_path, 1 << 20, rank)
        with one.running():
            one.train(300)
    address = input_path(store.fill(tmp_path))
    there, here = load_diagnosis([address]), load_diagnosis([tmp_path])
    expected = to_json(here).replace(bytes(tmp_path), str(address).encode())
    assert to_json(there) == expected
    run = find_run([address])
    s3fs.S3FileSystem.clear_instance_cache()  # as another process
    store.requests.clear()
    assert len(list(read_run(run))) == 2
    asked = Counter(one.path for one in store.requests if one.method == "HEAD")
    assert asked["/bucket/run/trace.rank00001.series.gz"] == 1
    assert max(asked.values()) == 1


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (TAILS[0], "503 Service Unavailable"),
        (KEPT, "403 Forbidden"),
        (SERIES, "500 Internal Server Error"),
    ],
)
def test_a_part_that_a_store_refuses_is_not_taken_for_missing(ending, status, tmp_path):
    for rank in range(2):
        one = FastMotion(tmp_path, 1 << 20, rank)
        with one.running():
            one.train(20)
    with serving(refusing(tmp_path, f"rank00001{ending}", status)) as (address, _):
        run = summarise(find_run([address]))[Run]
    assert [*run.ranks] == [0]
    [refused] = run.strangers
    assert f"trace.rank00001{ending}: cannot be read: " in refused


def test_an_object_that_changes_while_it_is_read_is_named(store, tmp_path):
    path = _large(tmp_path, 3 << 20)
    address = input_path(store.fill(tmp_path)) / path.name
    with Source(address) as source:
        source.read(1 << 10)
        store.put(f"run/{path.name}", path.read_bytes().replace(b"xxxx", b"yyyy"))
        with pytest.raises(TraceError, match=r"s3://bucket/run/trace.*changed while it was read"):
            source.read(3 << 20)


def test_an_object_that_goes_is_named_and_the_others_are_reported(store, tmp_path):
    write_run(tmp_path, 3)
    run = find_run([store.fill(tmp_path)])
    store.delete("run/trace.rank00001.json")
    s3fs.S3FileSystem.clear_instance_cache()  # as another process
    remote._start.cache_clear()
    [missing] = summarise(run)[Run].strangers
    assert missing == "s3://bucket/run/trace.rank00001.json: cannot be read: no such object"


def test_a_cut_object_is_read_as_far_as_it_goes(store, tmp_path):
    [path] = write_run(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-300])
    [trace] = read_run(find_run([store.fill(tmp_path)]))
    assert trace.trailer is None
    assert trace.steps


def test_names_that_lead_out_of_the_folder_are_left_out(store, tmp_path):
    [path] = write_run(tmp_path, 1)
    for name in ("run/../trace.rank00001.json", "run//trace.rank00002.json", "run/./x", "run/a/b"):
        store.put(name, path.read_bytes())
    assert [one.name for one in entries(input_path(store.fill(tmp_path)))] == ["a", path.name]


def test_many_other_objects_are_not_opened(store, tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "_MOST_LOOKS", 10)
    write_run(tmp_path, 1)
    for number in range(11):
        (tmp_path / f"shard-{number}.bin").write_bytes(b"weights")
    run = find_run([store.fill(tmp_path)])
    assert [one.reason for one in run.strangers] == [
        "11 objects without the name of a trace: too many to open; give the addresses of those "
        "to read"
    ]
    assert set(store.reads()) == {"run/trace.rank00000.json"}


def test_a_zip_on_a_store_is_read_in_parts(store, tmp_path):
    from zipfile import ZipFile

    paths = write_run(tmp_path / "run", 3)
    (tmp_path / "packed").mkdir()
    with ZipFile(tmp_path / "packed" / "run.zip", "w") as archive:
        for path in paths:
            archive.write(path, path.name)
    run = find_run([store.fill(tmp_path / "packed") + "/run.zip"])
    assert [trace.rank for trace in read_run(run)] == [0, 1, 2]


def test_a_store_whose_files_have_no_details_is_read(tmp_path):
    memory = fsspec.filesystem("memory")
    for path in [*write_run(tmp_path, 2), _large(tmp_path / "large", 1 << 20)]:
        memory.pipe(f"/{path.parent.name}/{path.name}", path.read_bytes())
    run = find_run([f"memory://{tmp_path.name}"])
    assert [len(trace.steps) for trace in read_run(run)] == [4, 4]
    [large] = read_run(find_run(["memory://large"]))
    assert large.nbytes > 1 << 20
    [path] = find_run(["memory://large"]).files
    with open_input(path) as file:
        memory.pipe("/large/trace.rank00000.json", b"x")
        with pytest.raises(OSError, match="changed while it was read"):
            file.read(1)


class Hdfs(MemoryFileSystem):
    """As fsspec's for `hdfs://`: parts are read from files only, as a stream cannot seek."""

    protocol = "hdfs"
    cluster: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        if path.startswith("hdfs://"):
            cluster, _, path = path.removeprefix("hdfs://").partition("/")
            cls.cluster.append(cluster)
        return "/" + path.strip("/")

    def cat_file(self, path: str, start: int | None = None, **options: Any) -> bytes:
        raise OSError("only valid on seekable files")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        if path == "/broken":
            raise OSError("unable to load libhdfs")
        return super().info(path, **options)


def test_hdfs_is_read_and_the_cluster_of_its_configuration_needs_no_name(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "hdfs", Hdfs)
    memory = Hdfs()
    for path in write_run(tmp_path, 2):
        memory.pipe(f"/{tmp_path.name}/{path.name}", path.read_bytes())
    for host in ("", "namenode:8020"):
        Hdfs.cluster.clear()
        run = find_run([f"hdfs://{host}/{tmp_path.name}"])
        assert [len(trace.steps) for trace in read_run(run)] == [4, 4]
        assert set(Hdfs.cluster) == {host or "default"}
    assert main(["report", "hdfs:///none"]) == 2
    assert main(["report", "hdfs:///broken"]) == 2
    none, broken = capsys.readouterr().err.splitlines()
    assert none.endswith("no such object, or the NameNode does not answer")
    assert "set CLASSPATH to what `hadoop classpath --glob` prints" in broken


def test_load_reads_an_address(store, tmp_path):
    write_run(tmp_path, 2)
    there, here = dsprof.load(store.fill(tmp_path)), dsprof.load(tmp_path)
    assert len(there.collectives) > 0
    assert list(there.collectives) == list(here.collectives)
    assert list(there.steps) == list(here.steps)


@pytest.mark.parametrize(
    "given",
    [
        f"s3://AKIAEXAMPLE:{SECRET}@bucket/run",
        f"s3://AKIAEXAMPLE:a/{SECRET}@bucket/run",
        f"https://{SECRET}@example.org/run",
        f"https://example.org/trace.json?X-Amz-Signature={SECRET}",
        f"abfs://run@account:{SECRET}@example.org/run",
        f"zip://trace.json/::https://user:{SECRET}@example.org/run.zip",
        f"simplecache::https://user:{SECRET}@example.org/run",
        f"file:///{SECRET}/run",
    ],
)
def test_an_address_with_credentials_is_refused_and_not_repeated(given, capsys):
    assert main(["report", given]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "is not read" in line
    assert SECRET not in line
    with pytest.raises(TraceError, match="is not read") as refused:
        dsprof.load(given)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("status", "kind", "why"),
    [
        ("403 Forbidden", "text/plain", "access denied; log in"),
        ("404 Not Found", "text/plain", "no such object"),
        ("400 Bad Request", "text/plain", "status 400; check address, region and credentials"),
        ("503 Busy", "text/plain", "status 503; try again later"),
        ("200 OK", "text/html", "a page that lists no files"),
    ],
)
def test_what_a_web_server_refuses_is_said_in_one_line(status, kind, why, capsys):
    with serving(answering(status, kind, SECRET.encode())) as (address, _):
        assert main(["report", f"{address}/run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert why in line
    assert SECRET not in line


def test_redirects_in_a_circle_are_said_in_one_line(capsys):
    circle = answering("302 Found", "text/plain", b"", Location="/run")
    with serving(circle) as (address, _):
        assert main(["report", f"{address}/run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "redirects in a circle; check the address" in line


def test_an_answer_that_is_no_http_is_not_taken_for_a_status(capsys):
    """Such as one that is longer than announced: aiohttp gives all of them status 400."""
    damaged = answering("200 OK", "text/plain", b"", **{"Content-Length": "many"})
    with serving(damaged) as (address, _):
        assert main(["report", f"{address}/run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("the answers of the server are not valid HTTP; download the file")


def test_a_store_that_denies_access_is_said_in_one_line(monkeypatch, capsys):
    body = f"<Error><Code>AccessDenied</Code><Message>{SECRET}</Message></Error>".encode()
    with serving(answering("403 Forbidden", "application/xml", body)) as (endpoint, _):
        _point_at(endpoint, monkeypatch)
        assert main(["check", "s3://bucket/run", "--budget", "/dev/null"]) == 2
        assert main(["report", "s3://bucket/run"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert "access denied; log in" in line
    assert SECRET not in line


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ("400 Bad Request", "status 400; check address, region and credentials"),
        ("503 Slow Down", "status 503; try again later"),
    ],
)
def test_what_a_store_answers_is_said_in_one_line(status, why, monkeypatch, capsys):
    body = f"<Error><Code>Other</Code><Message>{SECRET}</Message></Error>".encode()
    with serving(answering(status, "application/xml", body)) as (endpoint, _):
        _point_at(endpoint, monkeypatch)
        assert main(["report", "s3://bucket/run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(why)


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("AWS_PROFILE", "misspelt", "access denied; log in"),
        ("AWS_ENDPOINT_URL", "nowhere", "cannot be reached; check network"),
        ("AWS_DEFAULT_REGION", "no where", "cannot be reached; check network"),
    ],
)
def test_a_variable_that_is_wrong_is_said_in_one_line(variable, value, why, monkeypatch, capsys):
    _point_at("http://127.0.0.1:9", monkeypatch)
    monkeypatch.setenv(variable, value)
    assert main(["report", "s3://bucket/run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert why in line


def breaking_off(data: bytes) -> Callable[..., Iterable[bytes]]:
    """Return an application that sends half of what it announces."""

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        headers = [("Content-Type", "application/json"), ("Accept-Ranges", "bytes")]
        if environ["REQUEST_METHOD"] == "HEAD":
            start("200 OK", [*headers, ("Content-Length", str(len(data)))])
            return []
        first, last = map(int, environ["HTTP_RANGE"].removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        headers.append(("Content-Range", f"bytes {first}-{last}/{len(data)}"))
        start("206 Partial", [*headers, ("Content-Length", str(len(part)))])
        return [part[: len(part) // 2]]

    return application


def test_a_connection_that_breaks_off_is_said_in_one_line(tmp_path, capsys):
    path = _large(tmp_path, 1 << 20)
    with serving(breaking_off(path.read_bytes())) as (address, _):
        assert main(["report", f"{address}/{path.name}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("the connection broke off; try again")


def test_no_network_and_an_unknown_scheme_are_said_in_one_line(capsys):
    assert main(["report", "http://127.0.0.1:9/run"]) == 2
    assert main(["report", "nosuch://bucket/run"]) == 2
    unreachable, unknown = capsys.readouterr().err.splitlines()
    assert "cannot be reached; check network" in unreachable
    assert "unknown scheme" in unknown


@pytest.mark.parametrize(
    ("scheme", "module", "package"),
    [
        ("s3", "s3fs", "pip install 'dsprof[remote]'"),
        ("gs", "gcsfs", "pip install gcsfs"),
        ("az", "adlfs", "pip install adlfs"),
        ("hdfs", "pyarrow", "pip install pyarrow"),
        ("oss", "ossfs", "Install ossfs"),
    ],
)
def test_a_missing_package_is_named(scheme, module, package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    assert main(["report", f"{scheme}://bucket/run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"dsprof: {scheme}://bucket/run: cannot be read: a package is missing: ")
    assert package in line


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_server_that_never_answers_is_given_up(scheme, monkeypatch, capsys):
    """The kernel accepts the connection; nobody reads from it."""
    monkeypatch.setattr(remote, "_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        _point_at(f"http://{place}", monkeypatch)
        assert main(["report", f"{scheme}://{place if scheme == 'http' else 'bucket'}/run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "no answer in time; try again" in line


@contextmanager
def _without_ranges(folder: Path) -> Iterator[str]:
    """Serve a folder as `python -m http.server` does."""
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """The client leaves when it is sent more than it asked for."""

    with Server(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_folder_of_a_web_server_is_read_by_its_links(tmp_path):
    write_run(tmp_path / "run", 2)
    with _without_ranges(tmp_path) as address:
        run = find_run([f"{address}/run"])
        assert [trace.rank for trace in read_run(run)] == [0, 1]


@pytest.mark.parametrize("part", [[], ["--steps", "1:2"], ["--since", "1s"]])
def test_a_web_server_without_ranges_is_named(part, tmp_path, capsys):
    _large(tmp_path, 1 << 20)
    with _without_ranges(tmp_path) as address:
        assert main(["report", address, "-o", str(tmp_path / "report.html"), *part]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("cannot be read: the server supports no range requests; download the file")


def test_a_run_on_webhdfs_is_read_in_ranges(tmp_path, capsys):
    paths = write_run(tmp_path / "run", 3)
    paths.append(_large(tmp_path / "large", 5 << 20))
    paths[1].unlink()
    os.truncate(paths[2], paths[2].stat().st_size // 2)
    with serving(webhdfs(tmp_path)) as (endpoint, requests):
        address = endpoint.replace("http://", "webhdfs://")
        run = find_run([f"{address}/run"])
        first, cut = read_run(run)
        assert (first.rank, cut.rank) == (0, 2)
        assert cut.trailer is None
        [large] = read_run(find_run([f"{address}/large"]))
        assert large.nbytes == paths[3].stat().st_size
        assert main(["report", f"{address}/none"]) == 2
    assert max(one.nbytes for one in requests) < paths[3].stat().st_size
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("/none: cannot be read: no such object")


def compressing(data: bytes, *, wherever: bool) -> Callable[..., Iterable[bytes]]:
    """Return an application that compresses where it may, and then sends no ranges."""

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        headers = [("Content-Type", "application/json")]
        if environ["REQUEST_METHOD"] == "HEAD":
            start("200 OK", [*headers, ("Content-Length", str(len(data)))])
            return []
        if wherever or "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            start("200 OK", [*headers, ("Content-Encoding", "gzip")])
            return [gzip.compress(data)]
        first, last = map(int, environ["HTTP_RANGE"].removeprefix("bytes=").split("-"))
        start("206 Partial", [*headers, ("Content-Range", f"bytes {first}-{last}/{len(data)}")])
        return [data[first : last + 1]]

    return application


def test_a_web_server_that_may_compress_sends_ranges_of_the_plain_file(tmp_path):
    path = _large(tmp_path, 1 << 20)
    with serving(compressing(path.read_bytes(), wherever=False)) as (address, _):
        [trace] = read_run(find_run([f"{address}/{path.name}"]))
    assert trace.nbytes == path.stat().st_size


def test_a_small_answer_of_a_web_server_fills_no_memory(capsys):
    with serving(compressing(bytes(1 << 26), wherever=True)) as (address, _):
        tracemalloc.start()
        assert main(["report", f"{address}/trace.rank00000.json"]) == 2
        _, most_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most_bytes < 1 << 25
    assert "it changed while it was read" in capsys.readouterr().err


def test_links_may_begin_where_they_are():
    page = b'<a href="./trace.rank00000.json">x</a><a href="../">up</a>'
    with serving(answering("200 OK", "text/html", page)) as (address, _):
        found = entries(input_path(f"{address}/run"))
    assert [str(one) for one in found] == [f"{address}/run/trace.rank00000.json"]


def test_names_that_lead_to_another_store_are_left_out():
    page = b'<a href="trace.rank00000.json::memory:">x</a><a href="trace.rank00001.json">y</a>'
    with serving(answering("200 OK", "text/html", page)) as (address, _):
        assert [one.name for one in entries(input_path(f"{address}/run"))] == [
            "trace.rank00001.json"
        ]


@pytest.mark.parametrize("command", ["serve", "watch", "metrics", "capture"])
def test_commands_that_follow_a_run_refuse_addresses(command, capsys):
    assert main([command, "s3://bucket/run"]) == 2
    assert "an address cannot be given here" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["report", ".", "-o"], ["report", ".", "--config"], ["check", ".", "--budget"], ["lint"]],
)
def test_what_is_no_trace_cannot_be_at_an_address(arguments, capsys):
    assert main([*arguments, "s3://bucket/file"]) == 2
    assert "an address cannot be given here" in capsys.readouterr().err


def test_a_folder_cannot_be_opened(store, tmp_path):
    write_run(tmp_path, 1)
    with pytest.raises(OSError, match="a folder"):
        open_input(input_path(store.fill(tmp_path)))
