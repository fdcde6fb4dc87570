"""The page in a real browser: quiet, offline, drawn, readable."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dsprof.analysis.hang.model import GroupWaits, HangReport, HangVerdict
from dsprof.diagnosis.document import from_json
from dsprof.diagnosis.parts.run import Tile
from dsprof.reports import render
from dsprof.reports.hang import render as render_hang
from tests import browser
from tests.factories import diagnosis as factory

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browser.EXECUTABLE is None, reason="no Chromium on this machine"),
]

DRAW_ALL = """(async () => {
  document.getElementById("timeline")?.scrollIntoView({ behavior: "instant" });
  while (document.querySelector(".live[hidden]")) await new Promise((f) => setTimeout(f, 20));
  return document.querySelectorAll(".live .bars path").length;
})()"""

AXE = Path(__file__).parents[2] / "build/node_modules/axe-core/axe.min.js"
VIOLATIONS = """axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) =>
  violations.map(({ id, nodes }) => [id, ...nodes.slice(0, 3).map((node) => node.html)]))"""
GROUPS = [GroupWaits(group="world", name="0", ranks=(0, 1), waiting=(0,), absent=(1,))]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_bytes(render(factory.diagnosis(8, 50), "html"))
    return path


@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_is_drawn_without_a_word_or_a_request(
    chromium: browser.Browser, page_file: Path, dark: bool
) -> None:
    page = chromium.open(page_file, dark=dark)
    assert page.evaluate(DRAW_ALL) >= 4
    assert page.complaints() == []
    outside = [url for url in page.requests() if not url.startswith(("file:", "data:"))]
    assert outside == []


@pytest.mark.parametrize("width", [390, 1440])
def test_the_picture_of_a_hang_needs_no_script_and_fits(
    chromium: browser.Browser, tmp_path: Path, width: int
) -> None:
    hang = HangReport(verdicts=[HangVerdict(kind="never_entered", ranks=(1,))], groups=GROUPS)
    (tmp_path / "report.html").write_bytes(render(factory.diagnosis(hang=hang), "html"))
    page = chromium.open(tmp_path / "report.html", width=width)
    page.evaluate(DRAW_ALL)
    assert page.complaints() == []
    assert page.evaluate("document.querySelectorAll('.hang svg .absent-mark').length") > 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "most"), [(1600, 4500), (390, 7000)])
def test_the_page_of_a_run_like_the_demo_is_short(
    chromium: browser.Browser, tmp_path: Path, width: int, most: int
) -> None:
    demo = factory.diagnosis(2, 30, copies=[], annotations=[])  # it offloads and names nothing
    (tmp_path / "report.html").write_bytes(render(demo, "html"))
    page = chromium.open(tmp_path / "report.html", width=width)
    assert page.evaluate("document.documentElement.scrollHeight") <= most


def test_a_cut_address_leaves_the_page_in_order(chromium: browser.Browser, page_file: Path) -> None:
    page = chromium.open(f"{page_file.as_uri()}#late%")
    assert page.evaluate("typeof facts") == "function"
    assert page.complaints() == []


def test_a_link_to_what_is_folded_unfolds_it(chromium: browser.Browser, page_file: Path) -> None:
    page = chromium.open(page_file)
    note = "document.getElementById('allreduce-for-sharded-gradients')"
    assert not page.evaluate(f"{note}.open")
    page.evaluate("location.hash = 'allreduce-for-sharded-gradients'")
    page.wait(f"{note}.open")


def test_all_rows_of_a_table_are_shown_when_asked_for(
    chromium: browser.Browser, page_file: Path
) -> None:
    page = chromium.open(page_file)
    page.evaluate("document.querySelector('#step > details:last-of-type').open = true")
    rows = """[...document.querySelectorAll("#step > details:last-of-type tr")]
      .filter((row) => row.checkVisibility()).length"""
    assert page.evaluate(rows) == 11
    page.evaluate("document.querySelector('#step > details:last-of-type input').click()")
    assert page.evaluate(rows) == 51


def test_a_script_of_others_does_not_run(
    chromium: browser.Browser, page_file: Path, tmp_path: Path
) -> None:
    foreign = page_file.read_bytes().replace(
        b"<main>", b"<main><script>window.owned = 1</script><img src=x onerror='owned = 1'>"
    )
    (tmp_path / "report.html").write_bytes(foreign)
    page = chromium.open(tmp_path / "report.html")
    assert page.evaluate("window.owned") is None
    assert any("Content Security Policy" in complaint for complaint in page.complaints())


@pytest.mark.parametrize(
    "text", ["<img src=x onerror=owned=1>", "</script><script>owned=1</script>"]
)
def test_hostile_names_run_nothing_once_drawn(
    chromium: browser.Browser, tmp_path: Path, text: str
) -> None:
    (tmp_path / "report.html").write_bytes(render(factory.hostile(text), "html"))
    page = chromium.open(tmp_path / "report.html")
    page.evaluate(DRAW_ALL)
    assert page.evaluate("window.owned") is None
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.complaints() == []


def test_without_scripts_the_words_and_numbers_are_there(
    chromium: browser.Browser, page_file: Path
) -> None:
    page = chromium.open(page_file, scripts=False)
    # The page's own scripts are off; the protocol may still read the document.
    tree = page.call("DOMSnapshot.captureSnapshot", computedStyles=[])
    words = " ".join(tree["strings"])
    for said in (
        "Gradients are reduced at every micro-step",
        "Use ZeRO-1",
        "exposed communication",
        "all_gather",
    ):
        assert said in words
    assert "path" in tree["strings"]


@pytest.mark.parametrize("width", [390, 1280])
def test_a_sentence_of_a_tile_is_seen_whole(
    chromium: browser.Browser, tmp_path: Path, width: int
) -> None:
    cause = (
        "Rank 1 was still alive 29.6 s after the first rank entered, with no collective in flight: "
        "it was in its own code, or in a branch that the others do not take."
    )
    made = factory.diagnosis(tiles=[Tile(name, "1", cause) for name in ("one", "two", "three")])
    (tmp_path / "report.html").write_bytes(render(made, "html"))
    page = chromium.open(tmp_path / "report.html", width=width)
    cut = """[...document.querySelectorAll(".tiles small")]
      .filter((one) => one.scrollHeight > one.clientHeight).length"""
    assert page.evaluate(cut) == 0


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_the_page_never_scrolls_sideways(
    chromium: browser.Browser, page_file: Path, width: int
) -> None:
    page = chromium.open(page_file, width=width)
    page.evaluate(DRAW_ALL)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0


def test_a_long_name_without_a_gap_makes_nothing_wider(
    chromium: browser.Browser, tmp_path: Path
) -> None:
    name = "torch.nn.Module" * 12
    made = factory.hostile(name)
    for bar in (bar for step in made.timelines for bar in step.bars):
        bar.kind = name  # of an operation, which may be of a library that dsprof does not know
    (tmp_path / "report.html").write_bytes(render(made, "html"))
    page = chromium.open(tmp_path / "report.html", width=360)
    page.evaluate(DRAW_ALL)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0
    overlaps = """[...document.querySelectorAll(".quality .mark")].filter((mark) => {
      const word = document.createRange();
      word.selectNodeContents(mark);
      const label = mark.nextElementSibling.getBoundingClientRect();
      return word.getBoundingClientRect().right > label.left;
    }).length"""
    assert page.evaluate(overlaps) == 0


def test_a_calling_site_is_seen_whole_on_a_wide_screen(
    chromium: browser.Browser, tmp_path: Path
) -> None:
    rows = factory.communication(8, 50)
    for row in rows:
        row.site = "/home/someone/projects/large-language-model/training/pretrain_loop.py:1187"
    made = factory.diagnosis(8, 50, communication=rows)
    (tmp_path / "report.html").write_bytes(render(made, "html"))
    page = chromium.open(tmp_path / "report.html", width=1600)
    cut = """[...document.querySelectorAll("#communication .scroll")]
      .map((scroll) => scroll.scrollWidth - scroll.clientWidth)"""
    assert set(page.evaluate(cut)) == {0}


def test_cells_let_the_shade_through_that_says_that_a_table_scrolls(
    chromium: browser.Browser, page_file: Path
) -> None:
    page = chromium.open(page_file)
    cells = """[...document.querySelectorAll(".scroll td")]
      .map((cell) => getComputedStyle(cell).backgroundColor)"""
    # Written with an alpha below 1: rgba(...), or color(srgb r g b / a).
    assert [one for one in page.evaluate(cells) if "rgba" not in one and "/" not in one] == []


def test_a_heading_sorts_its_table_and_what_was_not_measured_stays_last(
    chromium: browser.Browser, page_file: Path
) -> None:
    page = chromium.open(page_file)
    column = """[...document.querySelector("#communication tbody").rows]
      .map((row) => row.cells[8].textContent.replace("\\u00a0", " "))"""
    heading = "document.querySelectorAll('#communication th')[8]"
    page.evaluate(f"{heading}.querySelector('button').click()")
    assert page.evaluate(f"{heading}.ariaSort") == "descending"
    assert page.evaluate(column) == ["61.0 ms", "21.5 ms", "1.90 ms", "not measurable"]
    page.evaluate(f"{heading}.querySelector('button').click()")
    assert page.evaluate(column) == ["1.90 ms", "21.5 ms", "61.0 ms", "not measurable"]


def test_sorting_orders_the_folded_rows_too(chromium: browser.Browser, page_file: Path) -> None:
    page = chromium.open(page_file)
    table = "document.querySelector('#step > details:last-of-type table')"
    counts = f"[...{table}.tBodies].map((body) => body.rows.length)"
    column = "[...{0}.tBodies].flatMap((body) => [...body.rows]).map((row) => {1})"
    click = "{0}.tHead.rows[0].cells[{1}].querySelector('button').click()"
    assert page.evaluate(counts) == [10, 40]
    page.evaluate(click.format(table, 1))
    totals = page.evaluate(column.format(table, "Number(row.cells[1].dataset.v)"))
    assert totals == sorted(totals, reverse=True)
    page.evaluate(click.format(table, 0))
    steps = page.evaluate(column.format(table, "row.cells[0].textContent"))
    assert steps == [str(number) for number in range(50)]
    assert page.evaluate(counts) == [10, 40]


def test_figures_follow_a_change_of_light(chromium: browser.Browser, page_file: Path) -> None:
    page = chromium.open(page_file, dark=False)
    page.evaluate(DRAW_ALL)
    colour = "getComputedStyle(document.querySelector('.live .bars path')).stroke"
    light = page.evaluate(colour)
    page.view(dark=True)
    page.wait(f"{colour} !== '{light}'")
    assert page.complaints() == []


KEYS = """[...document.querySelectorAll(".keys li, .swatch")].map((one) =>
  getComputedStyle(one, one.matches("li") ? "::before" : null).backgroundColor).join()"""


def test_keys_keep_their_colours_where_a_system_forces_its_own(
    chromium: browser.Browser, page_file: Path
) -> None:
    """As the drawings do: without colours they would explain nothing."""
    page = chromium.open(page_file)
    chosen = page.evaluate(KEYS)
    page.call(
        "Emulation.setEmulatedMedia",
        features=[
            {"name": "forced-colors", "value": "active"},
            {"name": "prefers-color-scheme", "value": "light"},
        ],
    )
    assert page.evaluate("matchMedia('(forced-colors: active)').matches")
    assert page.evaluate(KEYS) == chosen != ""


def test_printing_unfolds_the_page_and_folds_it_again(
    chromium: browser.Browser, page_file: Path
) -> None:
    page = chromium.open(page_file, dark=True)
    page.evaluate(DRAW_ALL)
    closed = "document.querySelectorAll('details:not([open])').length"
    before = page.evaluate(closed)
    assert page.pdf().startswith(b"%PDF")
    assert page.evaluate(closed) == before
    assert page.evaluate("document.documentElement.dataset.print") is None
    assert page.complaints() == []


def test_no_rule_of_accessibility_is_violated(
    chromium: browser.Browser, page_file: Path, tmp_path: Path
) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make build/node_modules")
    hang = HangReport(
        verdicts=[HangVerdict(kind="deadlock", sentence="A deadlock.")], groups=GROUPS
    )
    hung = tmp_path / "hang.html"
    hung.write_bytes(render_hang(hang, "html"))
    for path, dark in itertools.product((page_file, hung), (False, True)):
        page = chromium.open(path, dark=dark)
        page.evaluate(DRAW_ALL)
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        page.evaluate(f"{AXE.read_text()}; 1")
        assert page.evaluate(VIOLATIONS) == [], (path, dark)


def test_a_frame_of_a_flame_graph_is_zoomed_and_the_whole_comes_back(
    chromium: browser.Browser, page_file: Path
) -> None:
    page = chromium.open(page_file)
    page.evaluate("document.querySelector('.flame').closest('details').open = true")
    widths = """[...document.querySelectorAll(".flame > svg > svg")]
      .map((one) => Math.round(one.getBoundingClientRect().width))"""
    click = """document.querySelectorAll(".flame rect")[{}]
      .dispatchEvent(new Event("click", {{bubbles: true}}))"""
    before = page.evaluate(widths)
    phases = (
        "[...document.querySelectorAll('.flame > svg > svg')].map((one) => one.y.baseVal.value)"
    )
    first, second = [n for n, y in enumerate(page.evaluate(phases)) if y == 20]
    assert abs(before[0] - before[first] - before[second]) <= 1  # each is rounded
    page.evaluate(click.format(second))
    assert page.evaluate(widths)[second] == before[0]
    page.evaluate(click.format(0))
    assert page.evaluate(widths) == before
    assert page.complaints() == []


def test_the_filter_hides_findings_without_the_words(
    chromium: browser.Browser, tmp_path: Path
) -> None:
    (tmp_path / "report.html").write_bytes(
        render(factory.diagnosis(findings=factory.findings() * 2), "html")
    )
    page = chromium.open(tmp_path / "report.html")
    page.evaluate("""(() => {
      const input = document.querySelector(".filter input");
      input.value = "Small-Collectives fill";
      input.dispatchEvent(new Event("input"));
    })()""")
    shown = "[...document.querySelectorAll('.finding:not([hidden])')].map((one) => one.id)"
    assert page.evaluate(shown) == ["small-collectives", "small-collectives-2"]
    assert page.evaluate("document.querySelector('.filter output').textContent") == "2 of 6"


def test_the_report_can_be_downloaded_as_json(
    chromium: browser.Browser, page_file: Path, tmp_path: Path
) -> None:
    page = chromium.open(page_file)
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.evaluate("document.querySelector('.download').click()")
    saved = tmp_path / "dsprof-report.json"
    while not saved.exists() or not saved.stat().st_size:
        page.evaluate("new Promise(requestAnimationFrame)")
    assert from_json(saved.read_bytes(), "page") == factory.diagnosis(8, 50)
    assert page.complaints() == []
