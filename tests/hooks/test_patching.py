"""Patches put back the very object that was there, or stay out of the way."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsprof.hooks import patching
from dsprof.hooks.patching import Patch, PatchSet, when_imported


class Base:
    def inherited(self) -> str:
        return "base"


class Owner(Base):
    def method(self) -> str:
        return "own"


def loud(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: original(*args).upper()


@pytest.fixture
def raw() -> Iterator[Any]:
    """The object that stands in the class, checked to be back at the end."""
    before = vars(Owner)["method"]
    yield before
    assert vars(Owner)["method"] is before


def test_revert_puts_back_the_same_object(raw: Any) -> None:
    patch = Patch(Owner, "method", loud)
    patch.apply()
    assert Owner().method() == "OWN"
    assert patch.revert()
    assert vars(Owner)["method"] is raw


def test_revert_takes_an_inherited_name_off_the_subclass() -> None:
    patch = Patch(Owner, "inherited", loud)
    patch.apply()
    assert Owner().inherited() == "BASE"
    assert Base().inherited() == "base"
    assert patch.revert()
    assert "inherited" not in vars(Owner)


def test_revert_leaves_a_foreign_wrapper_alone(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = Patch(Owner, "method", loud)
    patch.apply()
    ours = vars(Owner)["method"]
    Owner.method = lambda self: ours(self) + "!"  # type: ignore[method-assign]
    foreign = vars(Owner)["method"]
    assert not patch.revert()
    assert vars(Owner)["method"] is foreign
    assert Owner().method() == "OWN!"
    Owner.method = raw  # type: ignore[method-assign]


def test_a_set_is_applied_whole_or_not_at_all(raw: Any) -> None:
    first = Patch(Owner, "method", loud)
    second = Patch(Owner, "inherited", loud)
    second.owner = 1  # attributes of an int cannot be set
    patches = PatchSet()
    with pytest.raises(AttributeError):
        patches.apply([first, second])
    assert vars(Owner)["method"] is raw
    assert patches.patches == []


def test_a_set_reports_what_it_had_to_leave(raw: Any) -> None:
    patches = PatchSet()
    patch = Patch(Owner, "method", loud)
    patches.apply([patch])
    Owner.method = foreign = lambda self: "foreign"  # type: ignore[method-assign]
    assert patches.revert() == [patch]
    assert vars(Owner)["method"] is foreign
    Owner.method = raw  # type: ignore[method-assign]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that can be imported and has not been."""
    (tmp_path / "dsprof_test_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "dsprof_test_module"
    sys.modules.pop("dsprof_test_module", None)
    patching.forget_imports()


def test_callback_runs_after_the_module_has_been_executed(module: str) -> None:
    seen = []
    when_imported(module, lambda: seen.append(sys.modules[module].value))
    assert seen == []
    loaded = importlib.import_module(module)
    assert seen == [1]
    importlib.import_module(module)
    assert seen == [1]
    assert type(loaded.__spec__.loader).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(loaded.__spec__.loader)


def test_callback_runs_at_once_for_an_imported_module() -> None:
    seen = []
    when_imported("json", lambda: seen.append(1))
    assert seen == [1]


def test_forgotten_callbacks_do_not_run_and_the_finder_is_gone(module: str) -> None:
    seen: list[int] = []
    when_imported(module, lambda: seen.append(1))
    patching.forget_imports()
    importlib.import_module(module)
    assert seen == []
    assert not any(type(finder).__name__ == "_Finder" for finder in sys.meta_path)


def test_a_missing_module_stays_missing() -> None:
    when_imported("dsprof_no_such_module", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("dsprof_no_such_module")
    patching.forget_imports()


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        (
            "dsprof, dsprof.recording.session, dsprof.recording.watchdog.thread",
            ["dsprof.plugins.entry_points", "dsprof.api", "dsprof.rules", "numpy"]
            + ["dsprof.trace.rolling", "dsprof.trace.source", "isal", "statistics"],
        ),
        ("dsprof.api", ["dsprof.plugins.entry_points", "dsprof.rules", "dsprof.analysis", "numpy"]),
    ],
)
def test_import_is_light(modules: str, unwanted: list[str]) -> None:
    """What a training process pays for it: no heavy module comes with it, and no search."""
    heavy = ["torch", "plotly", "jinja2", "yaml", "psutil", "rich", "dask", "importlib.metadata"]
    code = f"import {modules}, sys; print(sorted(sys.modules.keys() & {{*{heavy + unwanted}}}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
