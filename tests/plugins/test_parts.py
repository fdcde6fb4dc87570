"""What is in a folder is found: modules, what they assign to a name, and classes they define."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsprof.plugins.parts import classes_in, folders_in, in_folder


def below(kind: type) -> set[type]:
    """All classes of dsprof that derive from `kind`."""
    found = {one for child in kind.__subclasses__() for one in {child, *below(child)}}
    return {one for one in found if one.__module__.startswith("dsprof.")}


def test_no_hook_is_forgotten() -> None:
    pytest.importorskip("torch")
    from dsprof.hooks.base import Hook
    from dsprof.hooks.registry import HOOKS, WIRE_HOOKS, hooks_for

    used = {
        one
        for way in WIRE_HOOKS
        for is_cpp in (True, False)
        for one in hooks_for(way, in_cpp=is_cpp)
    }
    on_the_wire = {one for one in below(Hook) if getattr(one, "name", "") == "c10d"}
    assert below(Hook) - on_the_wire == used - on_the_wire
    assert HOOKS[-1].name == "unseen"


def test_modules_and_packages_of_a_folder_are_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("parts_of_test/b.py", "parts_of_test/a.py", "parts_of_test/inner/c.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"PART = {path.stem!r}\n")
    (tmp_path / "parts_of_test/none.py").write_text("from pathlib import Path\nclass Own: ...\n")
    for folder in ("parts_of_test", "parts_of_test/inner"):
        (tmp_path / folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert list(in_folder("parts_of_test", "PART")) == ["a", "b"]
        assert [kind.__name__ for kind in classes_in("parts_of_test")] == ["Own"]
        (inner,) = folders_in("parts_of_test")
        assert list(in_folder(inner, "PART")) == ["c"]
    finally:
        for name in [name for name in sys.modules if name.startswith("parts_of_test")]:
            del sys.modules[name]
