"""The pages of a run that is served, and the command that serves them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dsprof.__main__ import main
from dsprof.diagnosis.build import diagnose
from dsprof.errors import TraceError
from dsprof.live import site as pages
from dsprof.live.site import Site, check_confined
from dsprof.trace.run import find_run
from tests.cli.command import environment
from tests.factories.trace_files import encode, write_run
from tests.live.test_following import events
from tests.reports.pages import parse


@pytest.fixture
def site(tmp_path: Path) -> Site:
    write_run(tmp_path / "traces", 3)
    run = find_run([tmp_path / "traces"])
    return Site(run, diagnose(run))


def timeline(page: bytes | None) -> str:
    assert page is not None
    return parse(page).one("section", id="timeline").text


def addresses(page: bytes | None) -> set[str]:
    assert page is not None
    return {link.attributes["href"] for link in parse(page).all("a") if "href" in link.attributes}


def test_every_page_is_reached_by_links_from_the_report(site: Site) -> None:
    seen, ahead = set(), {"/"}
    while ahead:
        path = ahead.pop()
        seen.add(path)
        found = {link.partition("#")[0] for link in addresses(site.page(path))}
        ahead |= {link for link in found if link.startswith("/")} - seen
    steps = {f"/steps/{step}" for step in range(4)}
    ranks = {f"{step}/ranks/{rank}" for step in steps for rank in range(3)}
    assert seen == {"/", "/steps", *steps, *ranks}


def test_the_list_of_steps_names_the_parts_that_were_measured_and_their_colours(site: Site) -> None:
    page = parse(site.page("/steps") or b"")
    heads = [cell.text for cell in page.one("table").one("thead").all("th")]
    parts = [head.lower() for head in heads[2:-1]]
    assert parts == [key.text for key in page.one("ul", _class="keys").all("li")]
    assert "copies" not in parts
    assert all(len(row.all("td")) == len(heads) for row in page.one("tbody").all("tr"))


def test_a_step_is_read_from_the_trace_of_the_ranks_asked_for(site: Site, tmp_path: Path) -> None:
    for rank in (0, 2):
        (tmp_path / "traces" / f"trace.rank{rank:05d}.json").unlink()
    shown = timeline(site.page("/steps/2/ranks/1"))
    assert "Chosen step, 2" in shown
    with pytest.raises(TraceError):
        site.page("/steps/2")


@pytest.mark.parametrize(
    "path", ["/steps/4", "/steps/1/ranks/3", "/steps/-1", "/steps/1/", "/steps/page/9", "/steps/٣"]
)
def test_a_page_that_is_not_there_is_none(site: Site, path: str) -> None:
    assert site.page(path) is None


def test_a_long_list_of_steps_has_several_pages(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_STEPS", 3)
    assert "/steps/page/1" in addresses(site.page("/steps"))
    assert "/steps/3#timeline" in addresses(site.page("/steps/page/1"))


def test_a_link_to_another_folder_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "elsewhere")
    (tmp_path / "traces").mkdir()
    for file in (tmp_path / "elsewhere").iterdir():
        (tmp_path / "traces" / file.name).symlink_to(file)
    with pytest.raises(TraceError, match="which is in another folder"):
        check_confined(find_run([tmp_path / "traces"]), [tmp_path / "traces"])
    check_confined(find_run([tmp_path / "elsewhere"]), [tmp_path / "elsewhere"])


def test_a_part_of_a_recording_may_not_be_a_link_to_elsewhere(tmp_path: Path) -> None:
    (folder := tmp_path / "traces").mkdir()
    book, *lines = events(0)
    book.args.config["mode"] = "always"
    (folder / "trace.rank00000.json").write_bytes(encode([book, *lines]))
    check_confined(find_run([folder]), [folder])
    (tmp_path / "private").touch()
    (folder / "trace.rank00000.kept.gz").symlink_to(tmp_path / "private")
    with pytest.raises(TraceError, match="which is in another folder"):
        check_confined(find_run([folder]), [folder])


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    write_run(tmp_path / "traces")
    command = [sys.executable, "-m", "dsprof", "serve", "traces", "--port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        host, port, token = re.fullmatch(
            r"http://([\d.]+):(\d+)(/\?token=[\w-]+)\n", server.stdout.readline().decode()
        ).groups()
        browser = HTTPConnection(host, int(port), timeout=60)
        browser.request("GET", token)
        cookie = browser.getresponse().headers["Set-Cookie"].partition(";")[0]
        browser.request("GET", "/", headers={"Cookie": cookie})
        assert b"<!doctype html>" in browser.getresponse().read()
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
    assert (server.returncode, errors) == (0, b"")


@pytest.mark.parametrize("port", ["70000", "-1", "http"])
def test_a_port_that_is_none_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], port: str
) -> None:
    assert main(["serve", str(tmp_path), f"--port={port}"]) == 2
    assert "must be 0 to 65535" in capsys.readouterr().err


def test_a_port_in_use_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], site: Site
) -> None:
    from dsprof.live.http import Server

    with Server(0, site.page) as other:
        port = str(other.server_port)
        assert main(["serve", str(tmp_path / "traces"), "--port", port]) == 2
    assert f"cannot listen on port {port}: Address already in use; choose another" in (
        capsys.readouterr().err
    )


def test_a_browser_that_is_waited_for_is_answered(tmp_path: Path, site: Site) -> None:
    program = """\
import sys
from http.client import HTTPConnection
from urllib.parse import urlsplit
found = urlsplit(sys.argv[1])
connection = HTTPConnection(found.netloc, timeout=30)
connection.request("GET", f"/?{found.query}")
try:
    print("answered", connection.getresponse().status, flush=True)
except TimeoutError:
    print("not answered", flush=True)
"""
    (tmp_path / "browser.py").write_text(program)
    command = [sys.executable, "-m", "dsprof", "serve", str(tmp_path / "traces"), "--port", "0"]
    browser = f"{sys.executable} {tmp_path / 'browser.py'} %s"
    with subprocess.Popen(
        [*command, "--open"],
        env=environment(BROWSER=browser),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as serving:
        assert serving.stdout is not None
        try:
            assert "answered 303\n" in [serving.stdout.readline() for _ in range(3)]
        finally:
            serving.kill()
