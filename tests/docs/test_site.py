"""The site: built strictly, complete, and without anything from the network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest

import dsprof
from dsprof.api.loaded_run import CollectiveCall, FlushCall, MemoryReading
from dsprof.api.rank_steps import RankStep
from dsprof.rules.rule import RuleMeta
from tests.browser import EXECUTABLE, chromium

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site: broken links, headings and pages without a place fail its build."""
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def test_every_page_is_there_and_every_name_of_the_api(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    html = {page.with_suffix(".html") for page in pages if page.stem != "README"}
    assert {page for page in html if not (site / page).is_file()} == set()
    api = (site / "reference/api.html").read_text()
    names = set(dsprof.__all__) - {"__version__"}
    assert {name for name in names if f'id="dsprof.{name}"' not in api} == set()


@pytest.mark.parametrize("kind", [CollectiveCall, FlushCall, MemoryReading, RankStep, RuleMeta])
def test_the_api_shows_each_field_and_the_defaults_of_settings(site: Path, kind: type) -> None:
    api = (site / "reference/api.html").read_text()
    path = f"{kind.__module__}.{kind.__qualname__}"
    hidden = {name for name in get_type_hints(kind) if f'title="{path}.{name}"' not in api}
    assert hidden == set()
    assert "_NOT_GIVEN" not in api


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"?(https?:)?//")
    assert [page for page in site.rglob("*.html") if loads.search(page.read_text())] == []
    assert [sheet for sheet in site.rglob("*.css") if "//fonts." in sheet.read_text()] == []


def test_files_of_the_checkout_that_pages_show_go_along(site: Path) -> None:
    example = "examples/clusters/slurm.sbatch"
    assert (site / example).read_text() == (ROOT / example).read_text()
    assert f'href="../{example}"' in (site / "clusters/slurm.html").read_text()
    assert "rdzv-endpoint" in (site / "clusters/slurm.html").read_text()


@pytest.mark.browser
@pytest.mark.skipif(EXECUTABLE is None, reason="needs Chromium")
def test_search_answers_from_the_file_system(site: Path) -> None:
    with chromium() as browser:
        page = browser.open(site / "rules/late-rank.html")
        page.evaluate("document.querySelector('[for=__search]').click()")
        page.wait("document.activeElement.matches('.md-search__input')")
        page.call("Input.insertText", text="misspelt-variable")
        page.call("Input.dispatchKeyEvent", type="keyUp", key="e")
        page.wait("document.querySelector('.md-search-result__link')")
        found = page.evaluate("document.querySelector('.md-search-result__link').href")
        asked = {
            event["params"]["request"]["url"].partition(":")[0]
            for event in browser.events
            if event["method"] == "Network.requestWillBeSent"
        }
    assert found.startswith((site / "rules/misspelt-variable.html").as_uri())
    assert asked <= {"file", "data", "about"}


@pytest.mark.browser
@pytest.mark.skipif(EXECUTABLE is None, reason="needs Chromium")
def test_the_copy_button_covers_no_end_of_a_line(site: Path) -> None:
    beside = """(() => {
      const code = document.querySelector("pre code");
      code.scrollLeft = code.scrollWidth;
      const text = document.createRange();
      text.selectNodeContents(code);
      const button = document.querySelector(".md-code__nav").getBoundingClientRect();
      return code.scrollLeft > 0 && text.getBoundingClientRect().right <= button.left;
    })()"""
    with chromium() as browser:
        page = browser.open(site / "reference/comparing.html", width=500)
        page.wait("document.querySelector('.md-code__nav')")
        assert page.evaluate(beside)
