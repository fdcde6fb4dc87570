"""The section on a hang, and its picture."""

from __future__ import annotations

import msgspec

from dsprof.analysis.hang.model import Cause, GroupWaits, HangReport, HangVerdict
from dsprof.diagnosis.document import from_json, to_json
from dsprof.findings.finding import Status
from dsprof.reports import render
from dsprof.reports.hang import RENDERERS
from dsprof.reports.hang import render as render_hang
from dsprof.reports.html.hangs import MAX_COLUMNS, picture
from tests.factories import diagnosis as factory
from tests.reports.pages import parse

RANKS = tuple(range(8))
VERDICT = HangVerdict(
    kind="never_entered",
    ranks=(3,),
    waiting=(0, 1, 2),
    cause=Cause("sleep", "Rank 3 sleeps."),
    stacks={"3": ("data.py:8 wait",), "2": ("train.py:4 train",)},
    chain=((0, 2, "all_reduce 4 of world"), (2, 3, "broadcast 1 of pair")),
    confidence="high",
    sentence="Rank 3 never entered broadcast 1.",
)
PAIR = GroupWaits(
    group="pair", name="1", ranks=(2, 3), op="broadcast", number=1, waiting=(2,), absent=(3,)
)
WORLD = GroupWaits(
    group="world",
    name="0",
    ranks=RANKS,
    op="all_reduce",
    number=4,
    waiting=(0, 1, 4, 5, 6),
    absent=(2, 3),
    unknown=(7,),
)
REPORT = HangReport(verdicts=[VERDICT], groups=[PAIR, WORLD])


def test_ranks_in_the_same_state_share_a_column_and_the_root_is_marked() -> None:
    made = picture(REPORT)
    assert made is not None
    assert [(c.label, c.is_root) for c in made.columns] == [
        ("0-1, 4-6", False), ("2", False), ("3", True), ("7", False),
    ]  # fmt: skip
    assert [[mark.state for mark in lane.marks] for lane in made.lanes] == [
        ["waiting", "absent"], ["waiting", "absent", "absent", "unknown"],
    ]  # fmt: skip
    assert [lane.lines for lane in made.lanes] == [
        ("broadcast 1 of pair",), ("all_reduce 4 of world",),
    ]  # fmt: skip
    assert not made.undrawn


def test_a_long_title_has_two_lines_and_ranks_that_are_not_drawn_are_named() -> None:
    name = "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP"
    idle = msgspec.structs.replace(WORLD, absent=(), waiting=RANKS, unknown=())
    made = picture(HangReport(groups=[msgspec.structs.replace(PAIR, group=name), idle]))
    assert made is not None
    assert [lane.lines for lane in made.lanes] == [("broadcast 1", name)]
    assert made.undrawn == "Not drawn: ranks 0-1, 4-7; they are in none of these groups."


def test_arrows_lead_from_who_waits_to_whom_and_to_where_that_one_waits() -> None:
    made = picture(REPORT)
    assert made is not None
    assert [arrow.is_because for arrow in made.arrows] == [False, False, False, False, True]
    (reason,) = [arrow for arrow in made.arrows if arrow.is_because]
    rank_2 = made.columns[1]
    assert reason.path.startswith(f"M{rank_2.x:g} ")
    assert f"L{rank_2.x:g} " in reason.path


def test_of_many_columns_the_roots_are_kept() -> None:
    many = [
        GroupWaits(group=str(n), name=str(n), ranks=(n, n + 1), waiting=(n,), absent=(n + 1,))
        for n in range(0, 90, 3)
    ]
    made = picture(HangReport(verdicts=[VERDICT], groups=many))
    assert made is not None
    assert len(made.columns) == MAX_COLUMNS
    assert [column.label for column in made.columns if column.is_root] == ["3"]
    assert made.left_out > 0


def test_without_a_wait_there_is_no_picture() -> None:
    assert picture(HangReport(verdicts=[VERDICT])) is None
    assert b"<svg" not in render_hang(HangReport(verdicts=[VERDICT]), "html")


def test_the_report_begins_with_the_hang() -> None:
    page = parse(render(factory.diagnosis(hang=REPORT), "html"))
    assert [section.attributes["id"] for section in page.all("section")][:2] == ["hang", "findings"]
    (section,) = page.all("section", id="hang")
    assert "Rank 3 sleeps." in section.text
    assert "data.py:8 wait" in section.text
    assert [one.text for one in section.one("article").all("h4")] == [
        "Rank 3 (suspect)", "Rank 2",
    ]  # fmt: skip
    top = page.one("header", id="top")
    assert top.one("svg", role="img").attributes["aria-label"] == VERDICT.sentence
    assert not parse(render(factory.diagnosis(), "html")).all("section", id="hang")


def test_a_verdict_that_a_finding_tells_is_told_once() -> None:
    made = factory.diagnosis(hang=REPORT)
    failed = next(one for one in made.findings if one.status is Status.FAIL)
    place = made.findings.index(failed)
    told = {"summary": VERDICT.sentence, "cause": VERDICT.cause.text}
    made.findings[place] = msgspec.structs.replace(failed, **told)
    section = parse(render(made, "html")).one("section", id="hang")
    assert VERDICT.sentence not in section.text
    assert [one.text for one in section.all("h3")] == ["Rank 3 (suspect)", "Rank 2"]
    assert f"#{failed.rule}" in [link.attributes["href"] for link in section.all("a")]
    assert "data.py:8 wait" in section.text


def test_a_diagnosis_with_a_hang_is_read_back() -> None:
    made = factory.diagnosis(hang=REPORT)
    assert from_json(to_json(made), "x").hang == REPORT


def test_text_names_chain_stacks_and_groups() -> None:
    text = render_hang(REPORT, "text").decode()
    assert text.startswith("Rank 3 never entered broadcast 1.\nRank 3 sleeps.\n")
    assert "Rank 0 waits for rank 2 in all_reduce 4 of world" in text
    assert "rank 3\n    data.py:8 wait" in text
    assert "0-1, 4-6" in text


def test_every_format_survives_hostile_names() -> None:
    attack = "</script><img src=x onerror=owned=1>\x1b[31m"
    hostile = HangReport(
        verdicts=[
            msgspec.structs.replace(
                VERDICT, sentence=attack, cause=Cause("lock", attack), stacks={attack: (attack,)}
            )
        ],
        groups=[msgspec.structs.replace(WORLD, group=attack, op=attack, called_from=attack)],
    )
    for renderer in RENDERERS:
        shown = render_hang(hostile, renderer.name)
        assert b"\x1b[31m" not in shown or renderer.name == "html"
        assert b"<img" not in shown or renderer.name != "html"
