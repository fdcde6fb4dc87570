"""The diagnosis for a terminal."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.environment import Difference, EnvironmentInfo
from dsprof.diagnosis.parts.logs import LoggedFact
from dsprof.diagnosis.parts.run import Headline, Quality
from dsprof.findings.finding import Column, Finding, Status, Table
from dsprof.reports import render
from dsprof.reports.text.terminal import Page, printable
from tests.factories import diagnosis as factory

ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")


def text(made: Diagnosis, **options: object) -> str:
    return render(made, "text", **options).decode()  # type: ignore[arg-type]


def test_the_verdict_comes_first_then_findings_in_their_order() -> None:
    shown = text(factory.diagnosis())
    places = [
        shown.index(words)
        for words in (
            "Gradients are reduced at every micro-step. Set",
            "Data: 2 of 2 ranks, complete",
            "1. [HIGH] Gradients are reduced at every micro-step",
            "2. [MEDIUM] Many collectives",
            "WORTH KNOWING",
            "STEP",
            "COMMUNICATION",
            "CHECKS",
        )
    ]
    assert places == sorted(places)
    assert places[0] == 0


def test_a_finding_says_what_why_what_to_do_and_what_it_saves() -> None:
    shown = " ".join(text(factory.diagnosis()).split())
    assert "Each rank reduced 27.4 MiB" in shown
    assert "Why: ZeRO-2 partitions gradients" in shown
    assert "Do: Use ZeRO-1" in shown
    assert "Also: Exposed communication takes 91.2 ms per step (21 %)." in shown
    assert "Most is transfer" not in shown
    assert "Saves: 30\u201348 ms per step, 7.0\u201311 %" in shown
    rule = "reduction-every-micro-step"
    assert f"(confidence high, rule {rule}, explained by: dsprof explain {rule})" in shown


def test_rows_of_communication_that_differ_by_phase_look_different() -> None:
    made = factory.diagnosis()
    rows = [msgspec.structs.replace(made.communication[0], phase=p) for p in ("backward", "")]
    shown = text(msgspec.structs.replace(made, communication=rows), width=160).splitlines()
    first, second = (line for line in shown if rows[0].size_class in line)
    assert first.endswith(", backward)")
    assert second.endswith(" MiB)")


def test_rows_of_communication_that_differ_by_request_look_different() -> None:
    made = factory.diagnosis()
    asked = ("activation to stage 1", "gradient to stage 0")
    rows = [msgspec.structs.replace(made.communication[0], requested=one) for one in asked]
    shown = text(msgspec.structs.replace(made, communication=rows), width=160)
    assert all(f"all_reduce (requested: {one}) (" in shown for one in asked)


def test_a_row_that_does_not_fit_goes_on_in_the_next_line() -> None:
    made = factory.diagnosis()
    row = msgspec.structs.replace(made.communication[0], group="g" * 30, phase="p" * 30)
    shown = text(msgspec.structs.replace(made, communication=[row]), width=60)
    assert "p" * 30 in "".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 60


def test_the_columns_of_communication_are_named_whole() -> None:
    assert "(group, ranks, size, phase)" in " ".join(text(factory.diagnosis(), width=60).split())


def test_words_of_a_table_are_cut_only_where_they_do_not_fit_whole() -> None:
    row = ("11-14 22:13:20", "all_to_all_v", "crashed (rank 0)")
    table = Table(tuple(map(Column, ("Started", "Call", "End"))), (row,))
    lines = [*Page(34, colour=False).table(table)]
    assert max(map(len, lines)) <= 34
    assert {"22:13:20", "all_to_all_v", "crashed"} <= {*" ".join(lines).split()}
    assert max(len(line) for line in Page(20, colour=False).table(table)) <= 20


def test_the_patch_is_json_that_can_be_copied() -> None:
    shown = text(factory.diagnosis())
    block = re.search(r"^     \{.*?^     \}", shown, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert json.loads(block[0]) == factory.findings()[0].config_patch


def test_checks_that_need_nothing_done_are_counted() -> None:
    shown = text(factory.diagnosis())
    passed = [f.rule for f in factory.findings() if f.status is Status.PASS]
    assert "CHECKS\n  1 passed, 1 not applicable\n" in shown
    assert [rule for rule in [*passed, "allocator-fragmentation"] if rule in shown] == []


def test_a_note_is_its_title_and_one_sentence() -> None:
    note = Finding(
        rule="late-rank",
        title="Ranks differ",
        status=Status.INFO,
        summary="Rank 3 took 1.5 ms, e.g. in step 2. It computes.",
    )
    shown = text(factory.diagnosis(findings=[note]))
    assert "WORTH KNOWING  what to do: dsprof explain RULE\n" in shown
    assert "  - Ranks differ (late-rank). Rank 3 took 1.5 ms, e.g. in step 2.\n" in shown
    assert "It computes" not in shown


def test_a_healthy_run_fits_a_terminal_of_100_by_40() -> None:
    """With room for the command, the path of the page and the prompt; five notes of many."""
    healthy = [
        msgspec.structs.replace(f, status=Status.INFO if number < 5 else Status.PASS)
        for number, f in enumerate(factory.findings() * 10)
    ]
    shown = text(
        factory.diagnosis(
            findings=healthy,
            headline=Headline(line="No problems found. Compute-bound: 76 % compute."),
            next_lines=[],
        ),
        width=100,
    ).splitlines()
    assert len(shown) <= 36
    assert max(map(len, shown)) <= 100


def test_that_a_verdict_is_unknown_is_said_once() -> None:
    why = "Unknown: events were left out."
    finding = Finding(rule="late-rank", title="Late?", status=Status.UNKNOWN, summary=why)
    shown = text(factory.diagnosis(findings=[finding]))
    assert "  unknown: late-rank: Events were left out.\n" in shown


def test_a_value_of_any_length_leaves_the_rest_to_be_read() -> None:
    long = "y" * 100_000
    differing = Difference(name="NCCL_NET", values={long: [0], "": [1]})
    info = EnvironmentInfo(variables={"LONG": long}, differences=[differing])
    made = msgspec.structs.replace(factory.empty(), environment=info)
    shown = text(made)
    assert len(shown) < 5_000
    assert " ".join(shown.split()).count("(100,000 characters)") == 2
    page = render(made, "html").decode()
    assert "y" * 1_000 + "… (100,000 characters)" in page
    assert "y" * 1_001 not in page
    assert render(made, "json").decode().count(long) == 2


def unknown(rule: str, why: str) -> Finding:
    return Finding(rule=rule, title="?", status=Status.UNKNOWN, summary=f"Unknown: {why}")


def test_rules_that_lack_the_same_are_told_in_one_line() -> None:
    short = "Only 0 steps after warm-up;"
    found = [unknown(f"rule-{n}", f"{short} {n % 3} are needed.") for n in range(26)]
    found += [unknown("late-rank", "events were left out.")]
    found += [unknown(f"variable-{n}", "no environment; none at all.") for n in range(4)]
    shown = text(factory.diagnosis(findings=found))
    assert [line for line in shown.splitlines() if "unknown" in line] == [
        "  unknown: 26 rules: Only 0 steps after warm-up; 0 to 2 are needed.",
        "  unknown: late-rank: Events were left out.",
        "  unknown: 4 rules: No environment; none at all.",
    ]


def test_a_finding_of_one_rank_says_so() -> None:
    finding = msgspec.structs.replace(factory.findings()[0], ranks=(2,))
    assert "   Rank: 2\n" in text(factory.diagnosis(findings=[finding]))
    assert "   Ranks: 0-1\n" in text(factory.diagnosis())


def test_logged_facts_of_one_rank_say_so() -> None:
    fact = LoggedFact(kind="version", value="NCCL 2.29.7", ranks=[0], lines=1)
    assert "version: NCCL 2.29.7 (rank 0)" in text(factory.diagnosis(logged=[fact]))


def test_files_of_other_tools_have_no_cost_of_dsprof() -> None:
    made = factory.diagnosis(quality=Quality(is_recorded=False))
    shown = " ".join(text(made).split())
    assert "Files: written by other tools than dsprof" in shown
    for words in ("Data: 2 of 2 ranks, complete", "cost", "closed", "dropped"):
        assert words not in shown.partition("FINDINGS")[0]


def test_a_step_of_which_no_part_is_known_is_not_all_other() -> None:
    shown = text(factory.unsplit())
    step = shown.partition("\nSTEP  627 ms")[2].partition("COMMUNICATION")[0]
    assert "Its parts: not measurable: events were left out" in step
    assert "other" not in step
    assert "%" not in step


def test_what_is_not_known_of_a_collective_reads_so() -> None:
    lines = text(factory.diagnosis(communication=[factory.unknown_collective()])).splitlines()
    row = next(line for line in lines if "send_recv" in line)
    assert row.split()[1] == "unknown"
    assert row.endswith("send_recv (group unknown, size unknown)")
    named = msgspec.structs.replace(factory.unknown_collective(), group="experts")
    assert "(experts, ranks unknown, size unknown" in text(factory.diagnosis(communication=[named]))


@pytest.mark.parametrize("made", [EnvironmentInfo(), factory.environment()])
def test_no_heading_stands_over_nothing(made: EnvironmentInfo) -> None:
    shown = text(msgspec.structs.replace(factory.empty(), environment=made))
    assert ("ENVIRONMENT" in shown) == (made != EnvironmentInfo())


@pytest.mark.parametrize("width", [20, 60, 96, 160])
def test_lines_keep_to_the_width(width: int) -> None:
    shown = text(factory.diagnosis(quality=factory.flawed_quality()), width=width)
    longest = max(shown.splitlines(), key=len)
    assert len(longest) <= max(width, 60), longest


def test_flaws_of_the_data_are_listed_and_the_rest_is_not() -> None:
    shown = " ".join(text(factory.diagnosis(quality=factory.flawed_quality())).split())
    for words in (
        "no trace of rank 3",
        "the record of rank 1 breaks off",
        "12 dropped",
        "2 unmatched; unmatched ones are unknown for rank 1: the record was not closed",
        "Cost of dsprof: 3.1 %",
        "DeepSpeed 0.9 has no bucket (ranks 0-1)",
        "of another run",
        "The recorded window began at step 10.",
    ):
        assert words in shown
    assert "! Ranks" in shown
    assert "- Note: The recorded window" in shown
    assert "Data: 2 of 2 ranks, complete" not in shown
    assert "Data: 2 of 2 ranks, complete" in text(factory.diagnosis())


def test_skipped_files_and_notes_are_under_the_line_on_the_data_the_first_of_many() -> None:
    skipped = [f"trace.rank{rank:05d}.json: cannot be read" for rank in (7, 8)]
    made = factory.diagnosis()
    made.quality.strangers, made.quality.notes = skipped, ["The run has 2 ranks", "Another"]
    [_, below] = text(made).split("\nData: ")
    assert below.splitlines()[1:5] == [
        *(f"  - skipped: {one}" for one in skipped),
        "  - The run has 2 ranks",
        "  - and 1 more",
    ]


def test_of_many_skipped_files_the_first_are_among_the_flaws_of_the_data() -> None:
    made = factory.diagnosis(quality=factory.flawed_quality())
    made.quality.strangers = [f"job{number}.log: of another job" for number in range(2000)]
    shown = text(made)
    assert shown.count(": of another job") == 8
    assert "  - Skipped file: 1,992 more, named in the page and in JSON\n" in shown


def test_the_step_says_its_statistic() -> None:
    shown = text(factory.diagnosis(2, 30))
    assert re.search(r"^STEP  4\d\d ms, median of 28 measured steps", shown, re.MULTILINE)


def test_what_was_not_measured_is_not_zero() -> None:
    copies = next(line for line in text(factory.diagnosis()).splitlines() if "copies" in line)
    assert copies == "  copies: not measurable"


def test_an_empty_diagnosis_is_shown() -> None:
    shown = text(factory.empty())
    assert "0 of 4 ranks" in shown
    assert "low-comm-overlap: No step was recorded." in shown


def test_colour_only_where_asked_for() -> None:
    plain, coloured = text(factory.diagnosis()), text(factory.diagnosis(), colour=True)
    assert "\x1b" not in plain
    assert ESCAPE_SEQUENCE.sub("", coloured) == plain
    assert coloured != plain


def test_names_from_a_run_cannot_steer_the_terminal() -> None:
    shown = text(factory.hostile("\x1b]0;owned\x07\u202e\x9b31m\r\u2028"))
    assert set(shown) & set("\x1b\x07\u202e\x9b\r\u2028") == set()


def test_printable_keeps_words_in_any_language() -> None:
    assert printable("couche d'entrée 層\n\tx") == "couche d'entrée 層  x"


def test_what_is_estimated_says_so() -> None:
    made = factory.diagnosis()
    assert "upper bound" not in text(made)
    made.steps.estimated_share = 0.25
    assert "Exposed communication is an upper bound (25 % of it)" in " ".join(text(made).split())


def test_spans_of_the_program_are_shown_by_step() -> None:
    pattern = r"^ANNOTATED SPANS  of one rank's step\n +2 +5\.00 ms  data$"
    assert re.search(pattern, text(factory.diagnosis()), re.MULTILINE)


def test_a_part_longer_than_its_step_takes_no_memory() -> None:
    made = factory.diagnosis()
    made.steps.typical.parts.compute_ns = 1 << 62
    assert len(text(made)) < 10_000
