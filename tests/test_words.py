"""The check of words finds phrases in what people read, and leaves code alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.words import phrases_in


def found(path: Path, text: str) -> list[tuple[int, str]]:
    path.write_text(text)
    return [(one.line, one.text) for one in phrases_in(path)]


def test_a_phrase_is_found_in_prose_across_lines(tmp_path: Path) -> None:
    text = "# Page\n\nThe calling\nsite of rank 3.\n"
    assert found(tmp_path / "page.md", text) == [(3, "calling site")]


@pytest.mark.parametrize(
    "text", ["`under way`", "```\nls; echo alone\n```", "[a](alone.md)", "standalone"]
)
def test_code_addresses_and_parts_of_words_are_not_prose(tmp_path: Path, text: str) -> None:
    assert found(tmp_path / "page.md", text) == []


def test_strings_docstrings_and_comments_of_a_module_are_read(tmp_path: Path) -> None:
    text = '"""Nobody."""\n\nTEXT = f"{1} ranks are " "under way"\nalone = 1  # `alone`, alone\n'
    assert sorted(found(tmp_path / "module.py", text)) == [
        (1, "Nobody"),
        (3, "under way"),
        (4, "alone"),
    ]


def test_the_docstring_of_a_constant_has_a_subject(tmp_path: Path) -> None:
    text = 'A = 1\n"""Of a step: so much is idle."""\nB = 2\n"""A step is idle."""\nf"Of {B}"\n'
    assert found(tmp_path / "module.py", text) == [(2, "Of")]
