"""No command shows a credential that the program which wrote a file did not redact."""

from pathlib import Path

import pytest

from dsprof.__main__ import main
from dsprof.live.watching import Watched
from dsprof.trace.lines import LINES
from tests.factories import trace as make
from tests.factories.trace_files import encode

SECRET = "hf_" + "aB3" * 10


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every text is a credential that an older tool would have let pass."""
    folder = tmp_path_factory.mktemp("run")
    lines = [
        LINES["header"](args=make.header(0, 1, host=SECRET, backend=SECRET)),
        LINES["group"](args=make.group(1, label=SECRET, key=SECRET, name=SECRET)),
        make.sync(SECRET, 10, 5, requested=SECRET, phase=SECRET, dtype=SECRET, step=0),
        make.hanging(SECRET, 20, step=0),
        LINES["phase"](args=make.span(SECRET, 0, 5)),
        LINES["flush"](args=make.flush(1, 10, 5, step=0, cause=SECRET, dtype=SECRET, phase=SECRET)),
        LINES["fetch"](args=make.fetch(1, 10, 5, step=0, kind=SECRET)),
        LINES["copy"](args=make.copy(10, 5, step=0, what=SECRET, direction=SECRET)),
        LINES["memory"](args=make.MemorySample(SECRET, make.ns(90), 0, rss_bytes=5)),
        *(LINES["step"](args=make.step(n, 100 * n, 100 * n + 100)) for n in range(4)),
    ]
    (folder / "trace.rank00000.json").write_bytes(encode(lines))
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "report --format text",
        "report --format json",
        "export --to chrome -o -",
        "export --to perfetto -o -",
        "export --to csv -o - --table collectives",
        "export --to csv -o - --table flushes",
        "export --to csv -o - --table memory",
        "watch --once",
        "watch --once --format json",
    ],
)
def test_no_command_shows_it(
    run: Path, command: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    name, *options = command.split()
    main([name, str(run), *options])
    shown = capfdbinary.readouterr()
    assert SECRET.encode() not in shown.out + shown.err
    assert shown.out


def test_no_metric_has_it(run: Path) -> None:
    watched = Watched([run])
    while watched.is_behind:
        watched.look()
    totals = watched.totals
    assert all((totals.calls, totals.flushes, totals.steps))
    assert SECRET not in f"{totals.calls} {totals.flushes} {totals.steps}"
