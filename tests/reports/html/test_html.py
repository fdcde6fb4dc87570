"""The page: order, completeness, safety, size."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import msgspec
import pytest

from dsprof.diagnosis.document import from_json
from dsprof.diagnosis.headline import headline_of
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.communication import WaitPairs
from dsprof.diagnosis.parts.history import History
from dsprof.diagnosis.parts.run import Headline, Quality, RuleInfo
from dsprof.diagnosis.parts.timelines import TimelinePlace
from dsprof.diagnosis.parts.topology import PeerTraffic
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.formatting import NOTHING
from dsprof.reports import render
from dsprof.reports.html.templates import breakable
from dsprof.rules.communication.unexplained_traffic import UnexplainedTraffic
from tests.factories import diagnosis as factory
from tests.factories.steps_of_diagnosis import MS
from tests.reports.pages import Element, parse, unpacked

ATTACKS = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus=alert(1) x='",
    "{{ 7 * 7 }}{% raw %}<!--",
    "<a href='https://example.org'>x</a>&lt;b&gt;\u2028\u2029\ud7ff",
    "javascript:alert(1)",
    "%{x}<br><b>",
]


def page_of(made: Diagnosis) -> Element:
    return parse(render(made, "html"))


def without_marks(line: str) -> str:
    """A line as it is read: backticks are shown as code, and units keep to their numbers."""
    return line.replace("`", "")


@pytest.fixture(scope="module")
def page() -> Element:
    return page_of(factory.diagnosis(8, 50))


def test_a_name_cannot_turn_the_text_beside_it() -> None:
    line = "a\u202eb\u2067c\x00d\x1b[2J"
    page = render(factory.diagnosis(headline=Headline(line=line)), "html")
    assert parse(page).one("h1").text == "a?b?c?d?[2J"


def test_sections_come_in_the_order_in_which_a_reader_needs_them(page: Element) -> None:
    assert page.one("h1").text == without_marks(factory.diagnosis().headline.line)
    assert [section.attributes["id"] for section in page.all("section")] == [
        "findings",
        "step",
        "timeline",
        "communication",
        "waits",
        "flushes",
        "fetches",
        "copies",
        "memory",
        "checks",
        "quality",
        "environment",
        "appendix",
    ]


def test_the_contents_lead_to_every_section(page: Element) -> None:
    links = [link.attributes["href"] for link in page.one("nav").all("a")]
    assert links == [f"#{section.attributes['id']}" for section in page.all("section")]


def test_every_link_leads_to_something_on_the_page(page: Element) -> None:
    waiting = msgspec.structs.replace(factory.findings()[0], category="memory", ranks=(0,))
    others = (factory.empty(), factory.unsplit(), factory.diagnosis(findings=[waiting], memory=[]))
    for shown in (page, *map(page_of, others)):
        ids = {one.attributes["id"] for one in shown.all() if "id" in one.attributes}
        links = {link.attributes["href"] for link in shown.all("a")}
        assert links <= {f"#{name}" for name in ids}


def test_a_finding_says_what_why_what_to_do_and_what_it_saves(page: Element) -> None:
    finding = page.one("article", id="reduction-every-micro-step")
    for words in (
        "high",
        "communication",
        "confidence high",
        "all ranks",
        "Gradients are reduced at every micro-step",
        "could save 30\u201348 ms per step, 7.0\u201311 %",
        "Each rank reduced 27.4 MiB",
        "Why ZeRO-2 partitions gradients",
        "Do this Use ZeRO-1",
        "Also Exposed communication takes 91.2 ms per step (21 %).",
        "Gradient traffic of one rank",
        "Rule reduction-every-micro-step",
    ):
        assert words in finding.text
    assert json.loads(finding.one("pre").text) == factory.findings()[0].config_patch


def test_findings_keep_their_order_and_notes_promise_no_saving(page: Element) -> None:
    shown = page.one("section", id="findings").all(_class="finding")
    assert [one.attributes["id"] for one in shown] == [
        "reduction-every-micro-step",
        "small-collectives",
        "allreduce-for-sharded-gradients",
    ]
    assert "could save" not in shown[2].text
    assert shown[2].all("summary")[0].text == (  # its evidence and rule are inside
        "Gradients of ZeRO-2 travel by all_reduce By design: this stage has no reduce_scatter; "
        "13.7 MiB per step more than it would take."
    )


def test_the_first_screen_links_to_the_findings_that_follow(page: Element) -> None:
    (link,) = page.one("ul", _class="next").all("a")
    assert link.attributes["href"] == "#small-collectives"
    assert link.text.startswith("62 % of the calls are too small to fill the link. Raise")


def test_the_first_screen_counts_the_findings_that_it_does_not_name() -> None:
    first, second = factory.findings()[:2]
    others = [msgspec.structs.replace(second, rule=f"rule-{n}") for n in range(3)]
    made = factory.diagnosis(findings=[first, second, *others])
    assert page_of(made).one("ul", _class="next").all("li")[-1].text == "3 more findings"


def test_two_findings_of_a_rule_have_addresses_of_their_own() -> None:
    twice = [factory.findings()[0], factory.findings()[0]]
    articles = page_of(factory.diagnosis(findings=twice)).all("article")
    assert [one.attributes["id"] for one in articles] == [
        "reduction-every-micro-step", "reduction-every-micro-step-2",
    ]  # fmt: skip


def test_without_a_failed_finding_the_section_agrees_with_the_headline() -> None:
    def said(headline: Headline, **changes: object) -> Element:
        found = [msgspec.structs.replace(factory.findings()[0], **changes)] if changes else []
        made = factory.diagnosis(findings=found, headline=headline)
        return page_of(made).one("section", id="findings").one("p", _class="empty")

    nothing = "Nothing to judge. No step and no collective was recorded."
    assert said(Headline(line=nothing)).text == "Nothing to judge."
    fix = "Record 4 more steps"
    lead = headline_of(msgspec.structs.replace(factory.findings()[0], fix=fix))
    undecided = said(lead, status=Status.UNKNOWN, more_steps=4)
    assert undecided.text == "No problem is certain yet. Record 4 more steps."
    noted = said(lead, status=Status.INFO)
    assert noted.text.startswith("Nothing failed; see Worth knowing")
    assert noted.one("a").attributes["href"] == "#reduction-every-micro-step"


@pytest.mark.parametrize(("status", "tag"), [(Status.UNKNOWN, ["unknown"]), (Status.INFO, [])])
def test_a_headline_without_severity_says_whether_it_is_unknown(
    status: Status, tag: list[str]
) -> None:
    lead = msgspec.structs.replace(
        factory.findings()[0], status=status, severity=Severity.NONE, confidence=""
    )
    made = factory.diagnosis(findings=[lead], headline=headline_of(lead), next_lines=[])
    tags = page_of(made).one("header", id="top").all("span", _class="tag")
    assert [one.text for one in tags] == tag


def test_columns_say_of_how_many_steps_of_a_long_run_they_are() -> None:
    def said(history: History) -> str:
        made = factory.diagnosis(2, 40, history=history)
        captions = page_of(made).one("header", id="top").all("figcaption")
        return " ".join(one.text for one in captions)

    assert "40 of 90,000 are kept in detail, " in said(History(steps=90_000, detailed_steps=40))
    assert "kept in detail" not in said(History(steps=40, detailed_steps=40))


def test_columns_say_why_some_have_no_compute() -> None:
    made = factory.diagnosis(2, 3)
    rows = [*made.steps.rows]

    def said() -> str:
        steps = msgspec.structs.replace(made.steps, rows=rows)
        quality = msgspec.structs.replace(made.quality, counted_only_steps=1)
        page = page_of(msgspec.structs.replace(made, steps=steps, quality=quality))
        return " ".join(one.text for one in page.one("header", id="top").all("figcaption"))

    assert "only counted" not in said()
    rows[-1] = msgspec.structs.replace(rows[-1], compute_ns=None)
    assert "; steps without compute were only counted" in said()


def test_a_rule_is_explained_without_links_and_markup_of_its_page() -> None:
    text = "# id\n\n## What to do\n\nSee [x](../a.md). <b>1</b>\n\n| a |\n|-|\n| `b` |\n"
    about = RuleInfo("small-collectives", "t", "w", "communication", page=text)
    rule = page_of(factory.diagnosis(rules=[about])).one("article", id="small-collectives")
    explained = rule.one("div", _class="explained")
    assert explained.text == "What to do See x. <b>1</b> a b"
    assert explained.one("h4").text == "What to do"
    assert not explained.all("a")


def test_code_of_a_rule_scrolls_by_the_keyboard() -> None:
    text = "# id\n\n```json\n<b>1</b>\n```\n\n    indented\n"
    about = RuleInfo("small-collectives", "t", "w", "communication", page=text)
    rule = page_of(factory.diagnosis(rules=[about])).one("article", id="small-collectives")
    code = rule.one("div", _class="explained").all("pre", tabindex="0")
    assert [one.text for one in code] == ["<b>1</b>", "indented"]


def test_a_page_on_files_of_other_tools_claims_no_complete_data() -> None:
    shown = page_of(factory.diagnosis(quality=Quality(is_recorded=False)))
    for words in ("closed its trace", "none dropped", "Cost of dsprof"):
        assert words not in shown.one("section", id="quality").text


def test_a_step_of_which_no_part_is_known_has_no_bar() -> None:
    page = page_of(factory.unsplit())
    step = page.one("section", id="step")
    assert "other not measurable" in step.text
    assert "Step 627 ms" not in page.one("header", id="top").one("div", _class="proof").text


def test_every_rule_that_found_nothing_is_listed_with_its_reason(page: Element) -> None:
    checks = page.one("section", id="checks").text
    for words in ("1 passed", "1 not applicable", "1 unknown", "1 failed to run"):
        assert words in checks
    assert "The run used no GPU." in checks
    assert "misspelt-variable" in checks


def test_what_was_asked_for_stands_beside_what_was_sent_though_the_rule_passed() -> None:
    table = Table(columns=(Column("traffic"),), rows=(("gradients of the model",),))
    passed = UnexplainedTraffic.meta.finding(Status.PASS, "As asked.", evidence=(table,))
    section = page_of(factory.diagnosis(findings=[passed])).one("section", id="communication")
    assert "gradients of the model" in section.text
    plain = page_of(factory.diagnosis()).one("section", id="communication")
    assert "configuration asks for" not in plain.text


def test_spans_of_the_program_stand_with_the_step(page: Element) -> None:
    section = next(one for one in page.all("section") if one.attributes["id"] == "step")
    assert any(row.text.startswith("data 2 ") for row in section.all("tr"))


def test_what_was_not_measured_is_not_zero(page: Element) -> None:
    row = next(row for row in page.one("table", _class="legend").all("tr") if "copies" in row.text)
    assert row.text == "copies not measurable"
    communication = page.one("section", id="communication").all("tr")
    assert "not measurable" in next(row.text for row in communication if "broadcast" in row.text)


def test_many_steps_are_averaged_and_say_so() -> None:
    page = page_of(factory.diagnosis(2, 1000))
    drawn = page.one("header", id="top").all("div", role="img")[1]
    assert drawn.attributes["aria-label"].startswith(
        "Time of 998 steps, mean over ranks and 9 steps; the longest is that of steps "
    )
    labels = [cell.text for cell in page.one("table", _class="heat").one("thead").all("th")]
    assert len(labels) <= 62
    assert labels[2] == "0-16"
    assert "2-10" in drawn.text


def test_ranks_without_room_in_the_timeline_are_named_with_the_command_that_shows_them() -> None:
    made = factory.diagnosis(2, 4)
    assert "drawn" not in page_of(made).one("section", id="timeline").text.lower()
    made.run.ranks = [0, 1, 2, 3]
    text = page_of(made).one("section", id="timeline").text
    assert "Ranks 2-3 recorded nothing that can be drawn." in text
    made.run.ranks = [0, 1, *range(5, 70)]
    text = page_of(made).one("section", id="timeline").text
    assert "2 of 67 ranks are drawn:" in text
    assert "dsprof report PATH --ranks 5-16" in text


def test_what_flight_recorders_held_frames_the_ranks_of_the_finding() -> None:
    made = factory.diagnosis(4, 4)
    made.timelines = [msgspec.structs.replace(made.timelines[0], step=-2, why="dump")]
    made.timeline_places = [TimelinePlace(finding=0, step=-2, ranks=[1, 2])]
    page = page_of(made)
    (still,) = page.one("section", id="timeline").all("details", _class="still")
    assert "Calls that the flight recorders held:" in still.text
    frames = [path for path in still.all("path") if path.attributes["class"] == "outline"]
    assert [path.one("title").text for path in frames] == [
        "rank 1: named by a finding", "rank 2: named by a finding",
    ]  # fmt: skip


def test_a_timeline_frames_no_rank_that_was_late_in_another_step_of_the_column() -> None:
    def framed(made: Diagnosis) -> list[Element]:
        still = page_of(made).one("section", id="timeline").all("details", _class="still")[0]
        return [path for path in still.all("path") if path.attributes["class"] == "outline"]

    assert len(framed(factory.diagnosis(4, 20))) == 1
    assert framed(factory.late_in_another_step_of_a_column()) == []


def test_waits_show_no_data_apart_from_no_wait(page: Element) -> None:
    rank_0 = page.one("section", id="waits").one("table", _class="heat").one("tbody").all("tr")[0]
    step_1 = rank_0.all("td")[2]  # after the mean and step 0
    assert step_1.text == NOTHING
    assert step_1.attributes["title"] == "not measurable"
    assert "style" not in step_1.attributes


def test_the_mean_wait_is_of_the_steps_that_the_anatomy_takes() -> None:
    made = factory.diagnosis(2, 6)
    for row in made.waits.exposed_ns:
        row[:] = [900_000_000, 900_000_000, 20_000_000, 40_000_000, 20_000_000, 40_000_000]
    rows = page_of(made).one("table", _class="heat").one("tbody").all("tr")
    assert [row.one("td", _class="mean").text for row in rows] == ["30.0 ms", "30.0 ms"]


def test_flaws_of_the_data_are_marked_in_words() -> None:
    page = page_of(factory.diagnosis(quality=factory.flawed_quality()))
    rows = {row.one("th").text: row for row in page.one("table", _class="quality").all("tr")}
    assert rows["Ranks"].text == "check Ranks 2 of 2 present; no trace of rank 3"
    assert rows["Cost of dsprof"].text.startswith("note ")
    assert rows["Clock"].text.startswith("ok Clock two hosts")
    assert "180 µs" in rows["Clock"].text


def test_the_first_screen_says_what_limits_the_verdict_else_how_complete_the_data_is() -> None:
    limited = Quality(line="1 of 2 ranks", limits=["Stragglers unknown: rank 1 is missing."])
    top = page_of(factory.diagnosis(quality=limited)).one("header", id="top")
    assert top.one("ul", _class="limits").text == "Stragglers unknown: rank 1 is missing."
    top = page_of(factory.diagnosis()).one("header", id="top")
    assert not top.all("ul", _class="limits")
    assert "Data: 2 of 2 ranks, complete" in top.text


def test_the_first_screen_says_a_problem_of_the_data_once() -> None:
    problem = "The record of rank 1 breaks off"
    made = factory.diagnosis(quality=Quality(line="1 of 2 ranks", limits=[problem]))
    made.next_lines = [Headline(line=f"{problem}. Read its log.", problem=problem)]
    top = page_of(made).one("header", id="top")
    assert not top.all("ul", _class="limits")
    assert top.text.count(problem) == 1


def test_the_page_begins_with_its_type() -> None:
    assert render(factory.diagnosis(), "html").startswith(b"<!doctype html>\n")


def test_an_empty_run_is_a_page_without_figures() -> None:
    raw = render(factory.empty(), "html")
    page = parse(raw)
    assert page.all("figure") == page.all("div", _class="proof") == []
    assert "No step was recorded." in page.one("section", id="checks").text
    assert len(raw) < 40_000


def test_every_drawing_says_what_it_shows(page: Element) -> None:
    drawings = page.all("div", role="img")
    assert len(drawings) >= 6
    for one in drawings:
        assert one.attributes["aria-label"].endswith(".")


def test_a_static_page_is_small_and_holds_the_same_drawings(page: Element) -> None:
    raw = render(factory.diagnosis(8, 50), "html", is_static=True)
    assert len(raw) < 400_000
    static = parse(raw)
    assert not static.all("figure", _class="live")
    assert len(static.all("div", role="img")) == len(page.all("div", role="img"))


def test_long_tables_begin_with_ten_rows_and_hold_all(page: Element) -> None:
    steps = page.one("section", id="step").all("div", _class="table")[-1]
    assert steps.one("label").text == "all 50 rows"
    first, more = steps.all("tbody")
    assert (len(first.all("tr")), len(more.all("tr"))) == (10, 40)


def test_evidence_of_thousands_of_rows_keeps_the_page_light() -> None:
    table = Table((Column("variable"),), tuple((f"NAME_{n}_",) for n in range(5000)))
    finding = msgspec.structs.replace(factory.findings()[0], evidence=(table,))
    page = render(factory.diagnosis(findings=[finding]), "html").decode()
    assert "(4,800 more rows left out)" in page
    assert page.count("NAME_") == 200


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "Recorded: 4 steps."),
        ({"quality": Quality(partial_ranks=[1])}, "Recorded in detail on any rank: 4 steps."),
        ({"history": History(steps=90, detailed_steps=4)}, "Recorded: 4 steps."),
        (
            {"history": History(steps=90, detailed_steps=3)},
            "Recorded in detail on any rank: 4 steps.",
        ),
    ],
)
def test_steps_that_only_some_ranks_kept_are_said_to_be_so(
    changes: dict[str, object], said: str
) -> None:
    section = page_of(factory.diagnosis(2, 4, **changes)).one("section", id="step")
    assert said in section.all("p", _class="lead")[0].text


def test_a_table_without_rows_is_no_evidence() -> None:
    table, empty = factory.findings()[0].evidence[0], Table((Column("Call"),), ())
    for evidence, shown in (((empty, table), 1), ((empty,), 0)):
        finding = msgspec.structs.replace(factory.findings()[0], evidence=evidence)
        article = page_of(factory.diagnosis(findings=[finding])).one("article")
        assert len(article.all("table")) == len(article.all("details")) == shown


def test_landmarks_are_those_of_the_page_and_not_one_for_each_table(page: Element) -> None:
    assert page.all("table")
    assert page.all(role="region") == []
    assert all("aria-label" in one.attributes for one in page.all(role="group"))


def test_a_check_that_is_unknown_says_only_why() -> None:
    unknown = Finding(
        rule="late-rank", title="", status=Status.UNKNOWN, summary="Unknown: no rank was read."
    )
    checks = page_of(factory.diagnosis(findings=[unknown])).one("section", id="checks")
    assert checks.one("li").text == "late-rank No rank was read."


def test_a_path_breaks_at_its_slashes_and_a_rate_does_not() -> None:
    assert breakable("/data/my_runs/train.py") == "/data/<wbr>my_<wbr>runs/<wbr>train.py"
    assert breakable("a/b.py:1, /data/b.py:2") == "a/b.py:1, /data/b.py:2"
    assert breakable("12 GB/s of one link") == "12\xa0GB/s of one link"


@pytest.mark.parametrize("attack", ATTACKS)
def test_text_of_a_run_injects_no_element_and_no_attribute(attack: str) -> None:
    harmless = page_of(factory.hostile("x" * len(attack)))  # a longer name may have no room
    attacked = page_of(factory.hostile(attack))

    def skeleton(page: Element) -> list[tuple[str, list[str]]]:
        elements = (element for element in page.all() if element.tag != "wbr")  # after a slash
        return [(element.tag, sorted(element.attributes)) for element in elements]

    assert [tag for tag, _ in skeleton(attacked)] == [tag for tag, _ in skeleton(harmless)]
    allowed = {name for _, names in skeleton(harmless) for name in names}
    assert {name for _, names in skeleton(attacked) for name in names} <= allowed
    assert attacked.one("h1").text == " ".join(attack.split())


def test_who_waits_for_whom_is_a_matrix() -> None:
    made = factory.diagnosis(4, 4)
    made.arrivals.pairs = WaitPairs([0, 1, 5], [[0, 40 * MS, 0], [0, 0, 0], [0, 20 * MS, 0]])
    matrix = page_of(made).one("section", id="waits").all("table", _class="heat")[0]
    assert [row.text for row in matrix.one("tbody").all("tr")] == [
        "0 \N{MIDDLE DOT} 40", "1 \N{MIDDLE DOT}", "5 20 \N{MIDDLE DOT}",
    ]  # fmt: skip
    widths = [cell.attributes.get("style") for cell in matrix.one("tbody").all("td")]
    assert widths[1] == "--w:1.00"
    assert widths[7] == "--w:0.50"


def test_point_to_point_traffic_is_a_matrix_in_one_unit_and_a_table() -> None:
    some = 3 << 19
    made = factory.diagnosis()
    made.peer_traffic = PeerTraffic(
        names=["rank 0", "rank 1", "others"],
        bytes=[[0, some, 0], [0, 0, None], [10 << 20, 0, 0]],
        calls=[[0, 2, 0], [0, 0, 1], [1, 0, 0]],
        waited_ns=[[0, 3 * MS, 0], [0, 0, None], [0, 0, 0]],
    )
    section = page_of(made).one("section", id="communication")
    matrix = section.one("table", _class="heat")
    assert [row.text for row in matrix.one("tbody").all("tr")] == [
        "0 \N{MIDDLE DOT} 1.5", f"1 \N{MIDDLE DOT} {NOTHING}", "others 10 \N{MIDDLE DOT}",
    ]  # fmt: skip
    assert "MiB per step that the rank of the row sends to the rank of the column" in section.text
    table = next(one for one in section.all("table") if "Receiver waits" in one.text)
    assert [row.text for row in table.one("tbody").all("tr")] == [
        "others rank 0 10.0 MiB 1 0 ns",
        "rank 0 rank 1 1.50 MiB 2 3.00 ms",
        "rank 1 others unknown 1 not measurable",
    ]


def test_lines_that_wait_are_drawn_and_listed_by_exposed_time_with_bars(page: Element) -> None:
    section = page.one("section", id="communication")
    picture = section.one("div", _class="flame")
    assert picture.attributes["aria-label"] == (
        "84.4\xa0ms exposed communication per rank and step; the largest part is 61.0\xa0ms in "
        "/home/me/train.py:160 main."
    )
    lines = next(one for one in section.all("table") if "Phases" in one.text)
    first, second = lines.one("tbody").all("tr")
    assert first.text == "/home/me/train.py:160 main backward all_reduce 12 61.0 ms"
    assert second.text == "/home/me/train.py:161 main step all_gather, all_reduce 3 23.4 ms"
    assert first.all("td")[4].attributes["style"] == "--w:1.000"
    assert second.all("td")[4].attributes["style"] == "--w:0.384"


def test_the_page_carries_the_report_as_json() -> None:
    made = factory.diagnosis()
    facts = unpacked(page_of(made).one("script", id="facts").text)
    assert from_json(facts, "page") == made


def test_the_page_asks_for_nothing_from_outside(page: Element) -> None:
    for element in page.all():
        for name in ("src", "href", "action", "srcset", "poster", "data"):
            address = element.attributes.get(name, "#")
            assert address.startswith(("#", "data:")), (element.tag, address)
    assert not re.search(r"url\(|@import", page.one("style").text)


def test_the_policy_allows_the_pages_own_script_alone(page: Element) -> None:
    policy = next(
        meta.attributes["content"]
        for meta in page.all("meta")
        if meta.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    own = "".join(page.all("script")[-1].pieces)
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe-eval" not in policy
    assert page.all("script", type="text/javascript") == []


def test_eight_ranks_and_fifty_steps_fit_in_the_budget() -> None:
    assert len(render(factory.diagnosis(8, 50), "html")) <= 2_200_000
