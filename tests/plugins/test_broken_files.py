"""Readers and renderers of plugins that fail: one file is unreadable, one format fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import dsprof, environment, install
from tests.factories.trace_files import write_run

MODULE = """
from dsprof.api import CollectivesBuilder, Facts, Header, OneRankReader, RankTrace, Step

def header(**more):
    fields = dict(schema_version=1, run_key="", rank=0, world_size=1, host="", pid=0,
                  started_epoch_ns=0, started_monotonic_ns=0)
    return Header(**{**fields, **more})

class Odd(OneRankReader):
    tells = Facts.TIMELINE
    order = 1000
    def __init__(self, name, read_header=header, read_trace=None):
        self.name, self.header, self.trace = name, read_header, read_trace
    def recognises(self, start):
        return start.startswith(self.name.encode())
    def read_header(self, path):
        return self.header()
    def read_trace(self, path):
        return self.trace(path)

def fail(*args):
    raise LookupError("no luck\\nat all")

class Unsure(Odd):
    recognises = fail

def garbage(path):
    trace = RankTrace(str(path), header(), CollectivesBuilder().build())
    trace.steps = [Step("zero", "one", "two")]
    return trace

def holding(**fields):
    def read(path):
        trace = garbage(path)
        trace.steps = []
        for name, value in fields.items():
            setattr(trace, name, value)
        return trace
    return read

def panic(*args):
    raise BaseException("unwrap on None")

odd_environment = Odd("odd environment", header, holding(environment={"PATH": "/"}))
odd_trailer = Odd("odd trailer", header, holding(trailer="exit"))
odd_engine = Odd("odd engine", header, holding(engines={0: "ZeRO"}))
huge_rank = Odd("huge rank", lambda: header(rank=10**18, world_size=10**18 + 1))
panics_reading = Odd("panics reading", header, panic)
headless = Odd("headless", fail)
odd_header = Odd("odd header", lambda: header(rank="first"))
no_header = Odd("no header", lambda: 5)
unread = Odd("unread", header, fail)
no_trace = Odd("no trace", header, lambda path: 5)
spoilt = Odd("spoilt", header, garbage)
unsure = Unsure("unsure")
shadow = Odd("dsprof trace")

class Renders:
    suffix = ".x"
    def __init__(self, name, result=None):
        self.name, self.result = name, result
    def render(self, diagnosis, options):
        return self.result() if callable(self.result) else self.result

raises = Renders("raises", fail)
panics = Renders("panics", panic)
no_bytes = Renders("no-bytes", "text")
renamed = Renders("another", b"fine")
html = Renders("html", b"not the page")
"""
READERS = ("headless", "odd_header", "no_header", "unread", "no_trace", "spoilt", "unsure")
READERS += ("odd_environment", "odd_trailer", "odd_engine", "huge_rank", "panics_reading")
FORMATS = {
    "raises": "format raises of package odd-files 1.0 failed: LookupError: no luck\\nat all;",
    "panics": "format panics of package odd-files 1.0 failed: BaseException: unwrap on None;",
    "no-bytes": "format no-bytes of package odd-files 1.0 failed: TypeError: it returned str",
    "renamed": "plugin renamed: the name of its renderer is another",
    "absent": "Plugin absent of package odd-files 1.0 could not be loaded: AttributeError",
    "needs-torch": "plugins of the report must not import torch",
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    readers = [f"{name} = odd_files:{name}" for name in (*READERS, "shadow")]
    names = [name for name in (*FORMATS, "html") if name != "needs-torch"]
    renderers = [f"{name} = odd_files:{name.replace('-', '_')}" for name in names]
    renderers.append("needs-torch = odd_torch:x")
    points = "\n".join(["[dsprof.readers]", *readers, "[dsprof.renderers]", *renderers])
    install(folder, "odd-files", "1.0", entry_points=points)
    (folder / "odd_files.py").write_text(MODULE)
    (folder / "odd_torch.py").write_text("import torch\n")
    return folder


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ("headless", "reader headless of package odd-files 1.0 failed: LookupError: no luck"),
        ("odd header", "reader odd header of package odd-files 1.0 failed: ValidationError"),
        ("no header", "Header expected, got int"),
        ("unread", "reader unread of package odd-files 1.0 failed: LookupError"),
        ("no trace", "a trace must be a RankTrace, got int"),
        ("odd environment", "EnvSnapshot expected, got dict"),
        ("odd trailer", "Trailer expected, got str"),
        ("odd engine", "EngineConfig expected, got str"),
        ("huge rank", "invalid rank 1000000000000000000 for world size 1000000000000000001"),
        ("panics reading", "failed: BaseException: unwrap on None"),
        ("spoilt", "reader spoilt of package odd-files 1.0 gave a trace that cannot be analysed"),
    ],
)
def test_a_reader_that_fails_makes_one_file_unreadable(
    packages: Path, tmp_path: Path, start: str, why: str
) -> None:
    file = tmp_path / "file.odd"
    file.write_text(f"{start} and more")
    alone = dsprof("report", file, "--format", "json", cwd=tmp_path, env=environment(packages))
    assert (alone.returncode, alone.stdout) == (2, "")
    assert alone.stderr.startswith(f"dsprof: {file}: ")
    assert why in alone.stderr.replace("\\n", "\n")


def test_a_folder_is_reported_without_the_files_that_plugins_cannot_read(
    packages: Path, tmp_path: Path
) -> None:
    write_run(tmp_path)
    (tmp_path / "file.odd").write_text("headless")
    (tmp_path / "notes.txt").write_text("of no reader")
    done = dsprof("report", ".", "--format", "json", cwd=tmp_path, env=environment(packages))
    assert done.returncode == 0
    quality = json.loads(done.stdout)["quality"]
    assert any("reader headless of package odd-files 1.0" in one for one in quality["strangers"])
    notes = "\n".join(quality["notes"])
    assert "Reader unsure of package odd-files 1.0 failed to recognise a file" in notes
    assert "'dsprof trace' is built in, and a plugin cannot replace it" in notes


@pytest.mark.parametrize(("name", "why"), FORMATS.items())
def test_a_renderer_that_fails_is_one_line_and_writes_nothing(
    packages: Path, tmp_path: Path, name: str, why: str
) -> None:
    write_run(tmp_path / "run")
    options = ("--format", name, "-o", "out.x")
    done = dsprof("report", "run", *options, cwd=tmp_path, env=environment(packages))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert why in line
    assert not (tmp_path / "out.x").exists()


def test_no_plugin_takes_the_name_of_a_built_in_format(packages: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    dsprof("report", "run", "-o", "page.html", cwd=tmp_path, env=environment(packages))
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("command", "loaded"),
    [
        (["-c", "import dsprof, dsprof.api"], ""),
        (["-m", "dsprof", "--version"], ""),
        (["-m", "dsprof", "doctor"], ""),
        (["-c", "import torch"], ""),
        (["-m", "dsprof", "report", "run", "--format", "json"], "rules\n"),
        (["-m", "dsprof", "report", "run", "notes.txt", "--format", "json"], "readers\nrules\n"),
        (["-m", "dsprof", "report", "run", "--format", "mine"], "renderers\nrules\n"),
    ],
    ids=["import", "version", "doctor", "autostart", "native", "foreign", "format"],
)
def test_plugins_are_loaded_only_where_they_are_needed(
    tmp_path: Path, command: list[str], loaded: str
) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "notes.txt").write_text("of no reader")
    groups = ("rules", "readers", "hooks", "renderers")
    points = "\n".join(f"[dsprof.{group}]\nmine = mark_{group}:x" for group in groups)
    install(tmp_path, "marks", "1", entry_points=points)
    for group in groups:
        (tmp_path / f"mark_{group}.py").write_text(
            f"import pathlib\nwith open(r'{tmp_path}/log', 'a') as f: f.write('{group}\\n')\n"
        )
    subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=environment(tmp_path, DSPROF="1"),
        capture_output=True,
        check=False,
    )
    log = tmp_path / "log"
    found = log.read_text() if log.exists() else ""
    assert "".join(sorted(found.splitlines(keepends=True))) == loaded
