"""`dsprof.api`: what it promises is there, and costs nothing until it is used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dsprof
from dsprof import api

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", api.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(api, name) is not None
    assert name in dir(api)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = api.nothing  # type: ignore[attr-defined]


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(api.__file__).read_text())
    (block,) = (one for one in tree.body if isinstance(one, ast.If))
    typed = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == api._HOME_OF
    assert sorted([*typed, "API_VERSION"]) == sorted(api.__all__)


def test_importing_it_is_light_and_only_hooks_need_torch() -> None:
    code = (
        "import sys, dsprof.api as api\n"
        "print(sorted({'numpy', 'msgspec', 'torch', 'importlib.metadata'} & set(sys.modules)))\n"
        "[getattr(api, name) for name in api.__all__ if name not in ('Hook', 'Target')]\n"
        "print(sorted({'torch', 'plotly', 'jinja2', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "[]"
    assert done.stdout.split("\n")[1] == "[]"


def test_users_are_shown_no_inner_path() -> None:
    """The README and the manual of plugins import from `dsprof` and `dsprof.api` alone."""
    pages = [ROOT / "README.md", ROOT / "docs" / "reference" / "plugins.md"]
    pages += (ROOT / "examples" / "plugin").rglob("*.py")
    for page in pages:
        for line in page.read_text().splitlines():
            words = line.split()
            if words[:1] in (["from"], ["import"]) and "dsprof" in words[1].split("."):
                assert words[1] in ("dsprof", "dsprof.api"), f"{page.name}: {line}"


def test_the_types_of_what_users_get_can_be_imported() -> None:
    """A function that takes a run or its rows is annotated without an inner path."""
    manual = (ROOT / "docs" / "reference" / "python.md").read_text()
    rows = re.findall(r"^\| `run\.\w+` \| `(\w+)`: ", manual, re.M)
    assert len(rows) == 7
    for name in ("LoadedRun", "Recording", "Rows", *rows):
        assert name in api.__all__


def test_an_editor_is_offered_what_users_may_call() -> None:
    assert dir(dsprof) == sorted(dsprof.__all__)
