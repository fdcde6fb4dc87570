"""The timeline of the page: choose a step, zoom, find, colour, and come from a finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.findings import formatting as fmt
from dsprof.reports import render
from tests import browser
from tests.factories import diagnosis as factory

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browser.EXECUTABLE is None, reason="no Chromium on this machine"),
]

TICKS = "[...document.querySelectorAll('.bars > text:not(.on)')].map((one) => one.textContent)"
TITLE = "document.querySelector('.live .step').textContent"
FOUND = "document.querySelector('.live .found').textContent"
PICKED = "document.querySelector('.live .picked').textContent"
KEYS = "[...document.querySelectorAll('.live .keys li')].map((one) => one.textContent)"
FRAMES = "document.querySelectorAll('.live .bars .outline:not(.pick)').length"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_bytes(render(factory.diagnosis(4, 20), "html"))
    return path


@pytest.fixture
def page(chromium: browser.Browser, page_file: Path) -> browser.Page:
    return opened(chromium, page_file)


def opened(chromium: browser.Browser, path: Path) -> browser.Page:
    """Open a report and draw its timeline."""
    page = chromium.open(path)
    page.evaluate("document.getElementById('timeline').scrollIntoView({ behavior: 'instant' })")
    page.wait(
        "document.querySelector('#timeline[data-live]') && document.querySelector('.bars path')"
    )
    return page


def given(page: browser.Page, place: str, value: str, event: str = "input") -> None:
    """Give a control a value, as a reader does."""
    page.evaluate(f"""(() => {{
      const control = document.querySelector(".live {place}");
      control.value = {value!r};
      control.dispatchEvent(new Event({event!r}));
    }})()""")


def press(page: browser.Page, key: str) -> None:
    """Press a key in the drawing, and wait until it is drawn."""
    page.evaluate("document.querySelector('.plot').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def middle_of(page: browser.Page, place: str) -> tuple[float, float]:
    """Where an element is on the screen."""
    x, y = page.evaluate(f"""(() => {{
      const {{ x, y, width, height }} = document.querySelector({place!r}).getBoundingClientRect();
      return [x + width / 2, y + height / 2];
    }})()""")
    return x, y


def test_it_opens_at_the_worst_step_and_frames_the_straggler(page: browser.Page) -> None:
    assert page.evaluate(TITLE) == "Step 19, the longest: 452 ms"
    assert page.evaluate(FRAMES) == 1
    marked = "The frame marks the rank that the others waited for longest: rank 3."
    assert page.evaluate(PICKED) == marked
    lanes = "[...document.querySelectorAll('.live .lanes text')].map((one) => one.textContent)"
    assert page.evaluate(lanes)[:4] == [
        "rank 0 activity",
        "phases",
        "communication",
        "rank 1 activity",
    ]
    assert page.evaluate("document.querySelectorAll('.still').length") == 2
    assert not page.evaluate(
        "[...document.querySelectorAll('.still')].some((s) => s.checkVisibility())"
    )
    assert page.complaints() == []


def test_it_frames_no_rank_that_was_late_in_another_step_of_the_column(
    chromium: browser.Browser, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_bytes(render(factory.late_in_another_step_of_a_column(), "html"))
    page = opened(chromium, path)
    assert (page.evaluate(TITLE), page.evaluate(FRAMES)) == ("Step 19, the longest: 452 ms", 0)


def test_the_slider_and_the_buttons_choose_a_step(page: browser.Page) -> None:
    given(page, ".range", "1")
    assert page.evaluate(TITLE) == "Step 2: 412 ms"
    assert page.evaluate(FRAMES) == 0
    page.evaluate("document.querySelectorAll('.picks button')[1].click()")
    assert page.evaluate(TITLE) == "Step 10, near the median: 412 ms"
    assert page.evaluate("document.querySelector('.range').value") == "5"
    assert page.evaluate("document.querySelector('.picks [aria-pressed=true]').value") == "10"


def test_keys_and_the_wheel_zoom_and_move(page: browser.Page) -> None:
    whole = page.evaluate(TICKS)
    assert whole[0] == "0"
    press(page, "+")
    inside = page.evaluate(TICKS)
    assert "0" not in inside
    press(page, "ArrowLeft")
    assert page.evaluate(TICKS)[0] != inside[0]
    press(page, "0")
    assert page.evaluate(TICKS) == whole
    x, y = middle_of(page, ".plot")
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-600)
    page.wait(f"{TICKS}[0] !== '0'")


def test_what_is_found_is_counted_and_the_rest_dimmed(page: browser.Page) -> None:
    given(page, "[type=search]", "all_reduce layers.3")
    assert page.evaluate(FOUND) == "8 of 124 bars"
    assert page.evaluate("document.querySelectorAll('.bars .dim').length") > 0
    bright = (
        "[...document.querySelectorAll('.bars svg path:not(.dim):not(.line):not(.outline)')].length"
    )
    assert page.evaluate(bright) == 1
    press(page, "n")
    assert page.evaluate(PICKED).startswith("rank 0, communication, all_reduce, 9.00 ms, from ")
    given(page, "[type=search]", "nothing like this")
    assert page.evaluate(FOUND) == "0 of 124 bars"


def test_colours_are_of_operations_groups_or_modules(page: browser.Page) -> None:
    assert {"blocked", "forward", "all_reduce", "all_gather_into_tensor"} <= {*page.evaluate(KEYS)}
    given(page, "select", "group", "change")
    assert set(page.evaluate(KEYS)) == {"world", "experts", "no group recorded"}
    given(page, "select", "module", "change")
    assert {f"layers.{n}" for n in range(6)} <= {*page.evaluate(KEYS)}


def test_a_finding_leads_to_its_step_and_its_collective(page: browser.Page) -> None:
    page.evaluate("document.querySelector('.finding a[data-place]').click()")
    page.wait(f"{TITLE} == 'Step 10, near the median: 412 ms'")
    assert page.evaluate(FOUND) == "48 of 124 bars"
    assert page.evaluate(FRAMES) == 1
    assert page.evaluate("document.querySelectorAll('.bars .pick').length") == 1
    assert "all_reduce" in page.evaluate(PICKED)
    assert page.evaluate("document.activeElement.matches('.plot')")


def test_the_pointer_names_a_bar(page: browser.Page) -> None:
    x = page.evaluate("document.querySelector('.bars').getBoundingClientRect().left") + 5
    y = page.evaluate("document.querySelector('.bars').getBoundingClientRect().top") + 22
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.wait("!document.querySelector('.tip').hidden")
    said = page.evaluate("document.querySelector('.tip').textContent")
    assert said == "rank 0, phases, forward, 62.0 ms, from 0 ns"


def test_it_has_the_units_of_the_rest_of_the_page(
    chromium: browser.Browser, tmp_path: Path
) -> None:
    made = factory.diagnosis(4, 20)
    for step in made.timelines:
        step.duration_ns *= 5
    (tmp_path / "report.html").write_bytes(render(made, "html"))
    page = opened(chromium, tmp_path / "report.html")
    said = fmt.duration(made.timelines[0].duration_ns)
    assert said == "2.26 s"
    assert page.evaluate(TITLE).endswith(f": {said}")
    assert page.evaluate(TICKS)[-1].endswith(" s")


def test_its_table_sorts_by_value(chromium: browser.Browser, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_bytes(render(factory.diagnosis(12, 20), "html"))
    page = opened(chromium, tmp_path / "report.html")
    click = "document.querySelectorAll('.live table.data th button')[{}].click()"
    rows = "[...document.querySelector('.live table.data tbody').rows].map((row) => {})"
    for place in (3, 4, 5):
        page.evaluate(click.format(place))
        values = page.evaluate(rows.format(f"Number(row.cells[{place}].dataset.v)"))
        assert values == sorted(values, reverse=True)
        assert values[0] > values[-1]
    page.evaluate(click.format(0))
    ranks = [int(text) for text in page.evaluate(rows.format("row.cells[0].textContent"))]
    assert ranks == sorted(ranks)
    assert ranks[-1] == 11


def test_its_table_fits_a_narrow_screen(chromium: browser.Browser, page_file: Path) -> None:
    page = chromium.open(page_file, width=600)
    page.evaluate("document.getElementById('timeline').scrollIntoView({ behavior: 'instant' })")
    page.wait("document.querySelector('#timeline[data-live]')")
    page.evaluate("document.querySelector('.live details').open = true")
    table = "document.querySelector('.live .scroll')"
    assert page.evaluate(f"{table}.scrollWidth - {table}.clientWidth") == 0


@pytest.mark.parametrize("width", [390, 1440])
def test_it_fits_the_screen(chromium: browser.Browser, page_file: Path, width: int) -> None:
    page = chromium.open(page_file, width=width)
    page.evaluate("document.getElementById('timeline').scrollIntoView({ behavior: 'instant' })")
    page.wait("document.querySelector('#timeline[data-live]')")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
