"""The section on the epochs of a run that was started more than once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.run import Headline
from dsprof.reports import render
from dsprof.reports.html.epoch_drawing import epoch_drawing
from dsprof.trace.run import find_run
from dsprof.trace.schema import EXIT, NEW_GROUP
from tests.factories.epochs import Start, write
from tests.reports.pages import Element, parse

KILLED = Start(0, ends=(None, (EXIT, "")))
REMADE = Start(0, ends=((NEW_GROUP, ""), (NEW_GROUP, "")))


def judged(folder: Path, *starts: Start) -> Diagnosis:
    return diagnose(find_run([write(folder / "run", *starts)]))


def section_of(made: Diagnosis) -> Element:
    return parse(render(made, "html")).one("section", id="epochs")


@pytest.mark.parametrize(
    ("starts", "said"),
    [
        ((KILLED, Start(60)), "The run was started 2 times. "),
        (
            (KILLED, Start(60, fields=(("restarts", 5),))),
            "The run was started 6 times; 2 of these starts are recorded. ",
        ),
        ((REMADE, Start(60)), "The process group was created 2 times. "),
    ],
)
def test_starts_are_one_more_than_restarts(
    tmp_path: Path, starts: tuple[Start, ...], said: str
) -> None:
    made = judged(tmp_path, *starts)
    assert section_of(made).one("p", _class="lead").text.startswith(said)
    (found,) = (one for one in made.findings if one.rule == "restarted-job")
    restarts = {"2": "1 restart ", "6": "5 restarts "}[said.split(" times", maxsplit=1)[0][-1]]
    assert found.summary.startswith((restarts, said.rstrip(". ")))


def test_hours_are_hours_in_the_table_as_in_the_drawing_and_are_sorted_as_numbers(
    tmp_path: Path,
) -> None:
    shown = section_of(judged(tmp_path, KILLED, Start(7200)))
    labels = [heading.text for heading in shown.all("th")]
    gaps = [row.all("td")[labels.index("Gap before it")] for row in shown.one("tbody").all("tr")]
    assert [gap.text for gap in gaps] == ["\N{EN DASH}", "2.00 h"]
    assert int(gaps[1].attributes["data-v"]) / 3600e9 == pytest.approx(2, abs=1e-3)


def test_a_page_about_restarts_begins_with_their_drawing(tmp_path: Path) -> None:
    made = judged(tmp_path, KILLED, Start(60))
    for rule, place in (("restarted-job", "top"), ("late-rank", "epochs")):
        made.headline = Headline(line="", rule=rule)
        page = parse(render(made, "html"))
        for within in (page, page.one(id=place)):
            labels = [one.attributes["aria-label"] for one in within.all(role="img")]
            assert sum(label.startswith("2 epochs in ") for label in labels) == 1


def test_labels_of_epochs_have_room_on_a_phone(tmp_path: Path) -> None:
    starts = [Start(60 * number, ends=((EXIT, "RuntimeError"),)) for number in range(10)]
    drawn = epoch_drawing(judged(tmp_path, *starts).epochs)
    assert drawn is not None
    ends = [word for word in drawn.words if "(rank" in word.text]
    assert max(word.x for word in ends if word.kind == "start") <= 62
    assert min(word.x for word in ends if word.kind == "end") >= 38
