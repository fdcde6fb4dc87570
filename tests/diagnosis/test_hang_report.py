"""What `dsprof hang` says beyond the verdict."""

from __future__ import annotations

from pathlib import Path

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.hang_report import hang_report
from dsprof.reports.base import render_in
from dsprof.reports.hang import RENDERERS
from dsprof.trace.lines import LINES
from dsprof.trace.run import find_run
from tests.factories.hangs import write_killed
from tests.factories.trace import hanging, header, heartbeat
from tests.factories.trace_files import encode, run_events
from tests.reports.pages import parse


def test_a_hang_has_the_remedy_of_the_finding(tmp_path: Path) -> None:
    write_killed(tmp_path, 0, 1)
    report = hang_report([tmp_path], None, is_live=False)
    (verdict,) = report.verdicts
    found = {one.rule: one for one in diagnose(find_run([tmp_path])).findings}
    assert verdict.remedy
    assert verdict.remedy == found["stuck-collective"].action
    for form in ("text", "html", "json"):
        shown = render_in(RENDERERS, report, form, width=10_000).decode()
        assert verdict.remedy.split(".")[0] in shown


def test_a_mismatch_has_the_remedy_of_the_finding(tmp_path: Path) -> None:
    for rank, op in enumerate(("all_reduce", "broadcast", "all_reduce")):
        events = [*run_events(header(rank, 3))[:-1], hanging(op, 400, seq=4)]
        (tmp_path / f"trace.rank{rank:05d}.json").write_bytes(encode(events))
    (verdict,) = hang_report([tmp_path], None, is_live=False).verdicts
    found = {one.rule: one for one in diagnose(find_run([tmp_path])).findings}
    assert (verdict.kind, verdict.ranks) == ("mismatch", (1,))
    assert verdict.remedy == found["mismatched-collective"].action
    assert verdict.remedy.startswith("Make all ranks take the same branch")


def test_the_hosts_of_ranks_that_hang_together_are_looked_at_first(tmp_path: Path) -> None:
    for rank in range(4):
        events = [*run_events(header(rank, 4, host="b" if rank > 1 else "a"))[:-1]]
        events += [hanging("all_reduce", 400, seq=4)] if rank < 2 else []
        events.append(LINES["heartbeat"](name="heartbeat", args=heartbeat(30_000)))
        (tmp_path / f"trace.rank{rank:05d}.json").write_bytes(encode(events))
    (verdict,) = hang_report([tmp_path], None, is_live=False).verdicts
    assert verdict.ranks == (2, 3)
    assert verdict.remedy.startswith("Look at b, its storage and its network. Look at what rank 2")


def test_a_rank_in_another_call_of_torch_distributed_is_to_be_compared(tmp_path: Path) -> None:
    write_killed(tmp_path, 0, 1)
    c10d = "/v/site-packages/torch/distributed/distributed_c10d.py"
    frames = f"    new_group ({c10d}:5)\n    train (train.py:7)\n"
    stacks = f'Process 102: python train.py\nThread 102 (idle): "MainThread"\n{frames}'
    (tmp_path / "stacks.txt").write_text(stacks)
    (verdict,) = hang_report([tmp_path], None, is_live=False).verdicts
    assert verdict.remedy.startswith(
        "Compare the calls of torch.distributed on rank 2 at train.py:7 train with those of"
    )


def test_the_page_of_a_hang_says_its_verdict_once(tmp_path: Path) -> None:
    write_killed(tmp_path, 0, 1)
    report = hang_report([tmp_path], None, is_live=False)
    page = parse(render_in(RENDERERS, report, "html"))
    headings = [one.text for level in ("h1", "h3", "h4") for one in page.all(level)]
    assert headings.count(report.verdicts[0].sentence) == 1


def test_a_run_that_is_not_stuck_has_no_remedy(tmp_path: Path) -> None:
    write_killed(tmp_path)
    assert [one.remedy for one in hang_report([tmp_path], None, is_live=False).verdicts] == [""]
