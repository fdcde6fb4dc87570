"""`dsprof serve` as a browser meets it: the cookie, the links, and what a page may load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.live.http import Server
from dsprof.live.site import Site
from dsprof.trace.run import find_run
from tests.browser import EXECUTABLE, chromium
from tests.factories.trace_files import write_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium is installed"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    write_run(tmp_path, 2)
    run = find_run([tmp_path])
    with Server(0, Site(run, diagnose(run)).page) as made:
        thread = Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_a_reader_follows_links_to_a_step_of_a_rank(server: Server) -> None:
    here = f"http://127.0.0.1:{server.server_port}"
    follow = "location.assign([...document.querySelectorAll('a')].find(a => a.text == {!r}).href)"
    with chromium() as browser:
        page = browser.open(server.gate.address)
        assert page.evaluate("location.href") == f"{here}/"  # no token is left in it
        assert page.evaluate("document.cookie") == ""
        for label, path in (
            ("Every step", "/steps"),
            ("2", "/steps/2#timeline"),
            ("rank 1", "/steps/2/ranks/1#timeline"),
        ):
            page.evaluate(follow.format(label))
            page.wait(f"location.href == {here + path!r} && document.readyState == 'complete'")
        page.wait("document.querySelector('.live .step').textContent.startsWith('Step 2: ')")
        assert page.complaints() == []
        assert {one for one in page.requests() if not one.startswith((here, "data:"))} == set()


def test_another_page_can_neither_read_nor_embed_it(server: Server, tmp_path: Path) -> None:
    here = f"http://127.0.0.1:{server.server_port}"
    other = tmp_path / "other.html"
    other.write_text(f"<!doctype html><iframe src='{here}/steps'></iframe>")
    with chromium() as browser:
        browser.open(server.gate.address)
        page = browser.open(other)
        read = f"fetch('{here}/', {{credentials: 'include'}}).then(() => 'read', () => 'refused')"
        assert page.evaluate(read) == "refused"
        assert any("frame-ancestors" in one for one in page.complaints())
