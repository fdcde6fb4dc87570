"""A run that hung and was killed: every format and `dsprof check` say the same."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest

from dsprof.__main__ import main
from dsprof.trace.lines import LINES, Line
from tests.factories.trace import hanging, header, heartbeat
from tests.factories.trace_files import encode, run_events

NEVER_CAME = "Rank 2 never entered all_reduce 4 of group world (1.00 MiB); ranks 0, 1 waited 29.6 s"


def write_killed(folder: Path, *waiting: int) -> None:
    """Write a run of three ranks, of which some wait in a collective; SIGKILL ends all."""
    for rank in range(3):
        events: list[Line] = [*run_events(header(rank, 3))[:-1]]
        if rank in waiting:
            events.append(hanging("all_reduce", 400, seq=4))
        events.append(LINES["heartbeat"](name="heartbeat", args=heartbeat(30_000)))
        (folder / f"trace.rank{rank:05d}.json").write_bytes(encode(events))


@pytest.mark.parametrize(
    ("waiting", "start"),
    [((0, 1), NEVER_CAME), ((), "Ranks 0, 1, 2 ended without a trailer after step 3: killed")],
    ids=["hung", "killed"],
)
def test_all_formats_and_the_budget_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], waiting: tuple[int, ...], start: str
) -> None:
    write_killed(tmp_path, *waiting)
    said = {}
    for form in ("json", "text", "html"):
        out = tmp_path / f"page.{form}"
        assert main(["report", str(tmp_path), "--format", form, "-o", str(out)]) == 0
        said[form] = " ".join(unescape(out.read_text()).split())
    assert json.loads((tmp_path / "page.json").read_text())["verdict"].startswith(start)
    assert said["text"].startswith(start)
    assert start in said["html"]
    assert not any("No problem" in text for text in said.values())
    (tmp_path / "budget.yaml").write_text("bytes_per_step: 1e12\n")
    capsys.readouterr()
    assert main(["check", str(tmp_path), "--budget", str(tmp_path / "budget.yaml")]) == 1
    assert start in capsys.readouterr().out
