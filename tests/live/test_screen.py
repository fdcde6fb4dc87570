"""What the terminal shows, at the size of a terminal."""

from typing import Any

import msgspec
import pytest

from dsprof.diagnosis.parts.steps import StepParts
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.live.now import InFlight, RankNow, RunNow, Strip
from dsprof.live.screen import Chosen, as_text, screen
from tests.factories.trace import ns


def rank(number: int, **fields: Any) -> RankNow:
    given: dict[str, Any] = {"host": "node-a", "state": "running", "rss_bytes": 1 << 30}
    given |= {"step": 40, "step_ns": ns(100), "exposed_ns": ns(25)}
    return RankNow(number, **(given | fields))


def finding(rule: str, summary: str = "What is.", **fields: Any) -> Finding:
    return Finding(
        rule=rule,
        title="A title",
        status=Status.FAIL,
        summary=summary,
        severity=Severity.HIGH,
        **fields,
    )


def run(*ranks: RankNow, **fields: Any) -> RunNow:
    found = ranks or (rank(0), rank(1))
    parts = StepParts(
        step=None,
        compute_ns=ns(70),
        exposed_comm_ns=ns(25),
        copies_ns=None,
        idle_ns=None,
        other_ns=ns(5),
        total_ns=ns(100),
    )
    busy = [[ns(75)] * 30 for _ in found]
    given: dict[str, Any] = {"step": 40, "step_ns": ns(100), "steps_per_s": 10.0, "parts": parts}
    given["is_over"] = False
    return RunNow(
        "key",
        "2026-01-02T03:04:05+00:00",
        len(found),
        ranks=list(found),
        strip=Strip([one.rank for one in found][:64], list(range(30)), busy[:64]),
        **(given | fields),
    )


def lines(now: RunNow, width: int = 80, height: int = 24, **chosen: Any) -> list[str]:
    return as_text(screen(now, width, height, Chosen(**chosen))).splitlines()


def test_the_pace_and_the_parts_of_a_step_are_said() -> None:
    found = lines(run(trend=0.25))
    assert found[0] == "dsprof 2 ranks on node-a, started 03:04:05 UTC, running"
    assert found[1] == "Step 40  100 ms per step, 10 steps/s, 25 % slower than before"
    assert found[2] == "█" * 56 + "▓" * 20 + "·" * 4
    assert found[3] == "█ compute 70 %  ▓ exposed 25 %  · other 5 %"


def test_a_rank_that_waits_or_is_silent_says_so() -> None:
    waiting = rank(0, in_flight=InFlight("all_reduce", "data", 8, ns(3000)))
    brief = rank(1, in_flight=InFlight("all_reduce", "data", 8, ns(5)))
    found = lines(run(waiting, brief, rank(2, state="silent")))
    rows = [line for line in found if "node-a" not in line and "100 ms" in line][1:]
    assert rows[0].endswith("░  3.00 s in all_reduce of data")
    assert "all_reduce" not in rows[1]
    assert rows[2].endswith("silent")


def test_ranks_without_a_sign_of_life_are_named_with_the_time_of_the_last() -> None:
    gone = rank(1, state="gone", silent_ns=ns(735_000))
    found = lines(run(rank(0), gone, looked="2026-01-02T03:30:00+00:00"))
    assert found[0].endswith("running")
    text = " ".join(found[1:3])
    assert text.startswith("Rank 1 is gone: killed, or crashed without an exception.")
    assert "Last sign of life: 03:17:45 UTC, 12.2 min ago." in text
    silent = rank(0, state="silent", silent_ns=ns(30_000))
    found = lines(run(silent, looked="2026-01-03T00:00:10+00:00"))
    assert found[0].endswith("started 2026-01-02 03:04:05 UTC, no sign of life")
    assert "Last sign of life: 2026-01-02 23:59:40 UTC, 30.0 s ago." in " ".join(found[1:3])


def test_of_a_run_whose_traces_were_removed_no_figures_are_shown() -> None:
    found = lines(run(is_removed=True, findings=[finding("late-rank")]))
    assert found[0].endswith("traces removed")
    assert found[1].startswith("The traces were moved or removed while the run goes on")
    assert not any("Step" in line or "rank 0" in line for line in found)


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (("ended", "ended"), "ended"),
        (("ended", "crashed"), "crashed"),
        (("gone", "ended"), "killed"),
    ],
)
def test_how_a_run_ended_is_said(states: tuple[str, ...], said: str) -> None:
    ranks = [rank(number, state=state) for number, state in enumerate(states)]
    assert lines(run(*ranks, is_over=True))[0].endswith(f", {said}")


def test_all_fits_however_many_ranks_and_findings_there_are() -> None:
    many = [rank(number) for number in range(1024)]
    failed = [finding(f"r{n}", "What is. " * 40) for n in range(30)]
    now = run(*many, findings=failed, judged_steps=40, waiting_rules=["data-quality"])
    for width, height in ((80, 24), (40, 10), (200, 60)):
        found = lines(now, width, height, rank=1000, finding=0)
        assert len(found) <= height
        assert max(map(len, found)) <= width


def test_the_chosen_rank_is_in_sight() -> None:
    many = [rank(number, step=number) for number in range(100)]
    assert any(line.startswith("   77 ") for line in lines(run(*many), rank=77))
    assert not any(line.startswith("   77 ") for line in lines(run(*many), rank=0))


def test_of_many_ranks_those_to_look_at_come_first() -> None:
    many = [rank(number, step=number) for number in range(100)]
    many[90].state = "gone"
    now = run(*many, straggler=50, straggler_ns=ns(9))
    shown = [line.split()[0] for line in lines(now) if line.startswith("   ")]
    assert shown[:4] == ["50", "90", "0", "1"]
    assert f"and {100 - len(shown)} more ranks" in lines(now)


def test_keys_choose_one_step_of_a_rank() -> None:
    now, chosen = run(), Chosen()
    now.strip.total_ns = [[ns(100)] * 30, [ns(120)] * 30]
    chosen.move_step(-1, now.strip)
    assert chosen.step == 29  # the newest first
    chosen.move_step(-1, now.strip)
    chosen.move_rank(1, now)
    chosen.move_rank(1, now)
    found = as_text(screen(now, 80, 24, chosen))
    assert "Rank 1, step 28: 120 ms, 45.0 ms of it exposed (mean of ranks 110 ms)\n" in found
    chosen.move_step(-99, now.strip)
    assert chosen.step == 0
    now.strip.steps = [step + 10 for step in now.strip.steps]
    assert "step 10:" in as_text(screen(now, 80, 24, chosen))  # the oldest that is known


def test_a_slow_step_of_a_rank_stands_out_in_the_strip() -> None:
    now = run()
    now.strip.busy_ns[1][20] = ns(200)
    row = next(line for line in lines(now, 100) if line.startswith("    1 "))
    assert row.count("█") == 1
    row = next(line for line in lines(now, 100) if line.startswith("    0 "))
    assert row.count("█") == 0


def test_findings_say_how_far_they_go_and_unfold() -> None:
    failed = finding(
        "late-rank",
        "Rank 1 is last.",
        action="Look at rank 1.",
        problem="Rank 1 delays every step",
        fix="Look at rank 1",
    )
    now = run(findings=[failed], judged_steps=1, waiting_rules=["data-quality"])
    folded = "\n".join(lines(now))
    assert "1 finding after 1 step; 1 rule waits for the end of the run" in folded
    assert "high     Rank 1 delays every step. Look at rank 1." in folded
    assert "Rank 1 is last." not in folded
    assert "Rank 1 is last. Look at rank 1." in "\n".join(lines(now, finding=0))
    assert "Findings: not judged yet." in "\n".join(lines(run()))


def test_a_finding_that_is_wider_than_the_screen_is_wrapped() -> None:
    now = run(findings=[finding("a", problem="word " * 30, fix="Set that")], judged_steps=1)
    assert lines(now)[-1].endswith("Set that.")
    assert len(lines(now)) == len(lines(now, width=200)) + 2


def test_names_of_a_trace_cannot_move_the_cursor() -> None:
    found = lines(run(rank(0, state="silent"), stuck="\x1b[2J" + "no\nway"))
    assert "\x1b" not in "".join(found)
    hostile = run()
    hostile.ranks[0].host = hostile.ranks[1].host = "\x1b[31mred"
    assert "\x1b" not in "".join(lines(hostile))


def test_a_run_without_a_step_says_so() -> None:
    now = run(step=None, step_ns=None, parts=None)
    assert "No step has ended yet." in lines(now)
    assert msgspec.json.decode(msgspec.json.encode(now), type=RunNow) == now


def test_why_there_is_no_judgement_is_said() -> None:
    found = lines(run(judge_failure="/run: cannot be read"))
    assert "The rules cannot be applied: /run: cannot be read" in found
    assert "Findings: not judged yet." not in found
