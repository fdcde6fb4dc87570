"""What a report costs on a store that is far away: each request is answered late.

    python -m benchmarks.far_store [--ranks 256] [--delay-ms 50] [--hosts 1]

Starts an S3 server on this machine that sleeps before each answer, uploads a run and writes its
report; counts requests, and those that were answered at the same time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from benchmarks.scale_runs import Size, write_run

_BUCKET = "bucket"


class _Late:
    """An application whose answers are late by `delay_s`."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = Lock()
        self._now = 0
        self.delay_s = 0.0
        self.requests: Counter[str] = Counter()
        self.most_at_once = 0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            self.requests[environ["REQUEST_METHOD"]] += 1
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            time.sleep(self.delay_s)
            return self._application(environ, start)
        finally:
            with self._lock:
                self._now -= 1


@contextmanager
def _serving() -> Iterator[tuple[str, _Late]]:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            pass

    late = _Late(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, late, threaded=True, request_handler=Quiet)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", late
    server.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--hosts", type=int, default=1, help="folders hosts/NAME to spread over")
    parser.add_argument("--delay-ms", type=float, default=50)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _serving() as (endpoint, late):
        write_run(Path(folder), Size(arguments.ranks, 20, 10))
        os.environ |= {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_DEFAULT_REGION": "us-east-1",
            "DSPROF_CACHE": "off",
        }
        _upload(sorted(Path(folder).iterdir()), arguments.hosts)
        late.requests.clear()
        late.most_at_once, late.delay_s = 0, arguments.delay_ms / 1e3
        begun = time.monotonic()
        report = [sys.executable, "-m", "dsprof", "report", f"s3://{_BUCKET}/run", "--quiet"]
        subprocess.run([*report, "-o", f"{folder}/report.html"], check=True)
        print(
            f"{arguments.ranks} traces, {arguments.delay_ms:g} ms a request: "
            f"{time.monotonic() - begun:.1f} s, {sum(os.times()[2:4]):.1f} s of CPU; "
            f"{sum(late.requests.values())} requests {dict(late.requests)}, "
            f"at most {late.most_at_once} at once"
        )


def _upload(files: list[Path], hosts: int) -> None:
    import s3fs

    store = s3fs.S3FileSystem()
    store.mkdir(_BUCKET)
    for number, file in enumerate(files):
        host = f"hosts/node{number % hosts}/" if hosts > 1 else ""
        store.pipe_file(f"{_BUCKET}/run/{host}{file.name}", file.read_bytes())


if __name__ == "__main__":
    main()
