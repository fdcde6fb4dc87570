from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat import page

TEXT = """Before.

<!-- one: written by make compat -->
old
<!-- end -->

Between.

<!-- two: written by make compat -->
<!-- end -->
After.
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "page.md"
    path.write_text(TEXT)
    monkeypatch.setattr(page, "PAGE", path)
    return path


def test_one_part_is_replaced_and_the_rest_stays(written: Path) -> None:
    page.write("one", page.Part(["new", "lines"], holds=True))
    assert written.read_text() == TEXT.replace("old", "new\nlines")


def test_a_part_that_was_empty_is_filled(written: Path) -> None:
    page.write("two", page.Part(["new"], holds=True))
    page.write("two", page.Part(["newer"], holds=True))
    assert written.read_text() == TEXT.replace("<!-- end -->\nAfter", "newer\n<!-- end -->\nAfter")


def test_a_bar_in_a_cell_does_not_split_it() -> None:
    assert page.table(["a", "b"], [["x|y", "z"]])[-1] == "| x/y | z |"
