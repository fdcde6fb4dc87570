"""The registry of renderers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.errors import DsprofError
from dsprof.reports import RENDERERS, render
from tests.factories import diagnosis as factory


def test_every_renderer_is_reached_by_its_name_and_has_an_ending() -> None:
    names = [renderer.name for renderer in RENDERERS]
    assert sorted(names) == ["html", "json", "text"]
    assert len({renderer.suffix for renderer in RENDERERS}) == len(RENDERERS)
    assert all(renderer.suffix.startswith(".") for renderer in RENDERERS)


@pytest.mark.parametrize("name", [renderer.name for renderer in RENDERERS])
def test_the_same_diagnosis_gives_the_same_bytes(name: str) -> None:
    assert render(factory.diagnosis(), name) == render(factory.diagnosis(), name)


def test_an_unknown_format_names_those_there_are() -> None:
    with pytest.raises(DsprofError, match=r"unknown format 'pdf'; known: html, json, text"):
        render(factory.diagnosis(), "pdf")


def test_text_and_json_do_not_need_jinja2() -> None:
    program = (
        "import sys\n"
        "from dsprof.reports import render\n"
        "from tests.factories import diagnosis as factory\n"
        "render(factory.diagnosis(), 'text'), render(factory.diagnosis(), 'json')\n"
        "print({'jinja2', 'torch'} & set(sys.modules))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
