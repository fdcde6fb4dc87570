"""A calling site is the first frame outside the libraries, however the way there looked before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace

import pytest
import torch

from dsprof.hooks import call_sites
from dsprof.hooks.call_sites import LOOK_EVERY, KnownSites, Sites
from dsprof.recording.recorder.hot_state import compiled
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Site

Call = Callable[[], int]


def below(call: Call, *files: str) -> Call:
    """Return `call` below one frame a file, the outermost last; all have the same code position."""
    for file in files:
        scope = {"call": call}
        exec(compile("def frame(): return call()", file, "exec"), scope)
        call = scope["frame"]  # type: ignore[assignment]
    return call


def setup() -> tuple[Call, Callable[[int], str]]:
    """Return the innermost call, and the name of the file of a site."""
    recorder = Recorder(lambda: True)
    sites = Sites(recorder)

    def file_of(number: int) -> str:
        definitions = [d for d in recorder.outbox.definitions if isinstance(d, Site)]
        return next(site.file for site in definitions if site.id == number)

    return lambda: sites.above(1), file_of


@pytest.fixture(autouse=True, params=["C", "Python"])
def _language(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with what knows sites in C, and once with what does in Python."""
    if request.param == "Python":
        monkeypatch.setattr(call_sites, "make_known_sites", KnownSites)
    elif compiled is None:
        pytest.skip("nothing was compiled")


INSIDE = torch.__file__
LIBRARY = [INSIDE] * 12


def test_the_first_frame_outside_the_libraries() -> None:
    call, file_of = setup()
    for _ in range(3 * LOOK_EVERY):
        assert file_of(below(call, *LIBRARY, "user.py", INSIDE, "main.py")()) == "user.py"


@pytest.mark.parametrize("height", [5, 9])
def test_a_frame_without_a_code_position_is_no_error(
    height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As frames of C code may be."""
    getframe = sys._getframe

    def of_c(above: int) -> object:
        frame = getframe(above + 1)
        return SimpleNamespace(f_lasti=-1) if above == height else frame

    monkeypatch.setattr(sys, "_getframe", of_c)
    call, file_of = setup()
    monkeypatch.undo()
    assert {file_of(below(call, *LIBRARY, "user.py")()) for _ in range(LOOK_EVERY)} == {"user.py"}


def test_two_sites_at_the_same_height() -> None:
    call, file_of = setup()
    for _ in range(3 * LOOK_EVERY):
        assert file_of(below(call, *LIBRARY, "one.py")()) == "one.py"
        assert file_of(below(call, *LIBRARY, "other.py")()) == "other.py"


def test_a_stack_that_is_shorter_than_the_one_known() -> None:
    call, file_of = setup()
    assert file_of(below(call, *LIBRARY, *LIBRARY, *LIBRARY, "deep.py")()) == "deep.py"
    assert file_of(below(call, "shallow.py")()) == "shallow.py"


def test_a_path_that_looks_like_another_is_found_out() -> None:
    """All frames here have the same position: only the walk can tell the two stacks apart."""
    call, file_of = setup()
    far = below(call, *LIBRARY, INSIDE, "far.py")
    near = below(call, *LIBRARY, "near.py", "far.py")
    far()
    for _ in range(LOOK_EVERY):
        near()
    for _ in range(3 * LOOK_EVERY):
        assert file_of(near()) == "near.py"
        assert file_of(far()) == "far.py"


@pytest.mark.parametrize("a_step", [4, 8, 12, 16, 32])
def test_a_path_is_found_out_however_many_collectives_a_step_has(a_step: int) -> None:
    call, file_of = setup()
    far = below(call, *LIBRARY, INSIDE, "far.py")
    near = below(call, *LIBRARY, "near.py", "far.py")

    def step() -> str:
        for _ in range(a_step - 1):
            far()
        return file_of(near())

    far()
    assert [step() for _ in range(2 * LOOK_EVERY)][LOOK_EVERY:] == ["near.py"] * LOOK_EVERY


def test_no_site_at_all() -> None:
    recorder = Recorder(lambda: True)
    assert Sites(recorder).above(10_000) == 0


def test_a_library_that_names_its_folders_by_paths(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As transformers does, once it is imported."""
    library = ModuleType("transformers")
    library.__spec__ = ModuleSpec("transformers", None, is_package=True)
    library.__spec__.submodule_search_locations = [tmp_path]  # type: ignore[list-item]
    monkeypatch.setitem(sys.modules, "transformers", library)
    call, file_of = setup()
    assert file_of(below(call, str(tmp_path / "trainer.py"), "user.py")()) == "user.py"


def test_more_sites_than_are_remembered() -> None:
    call, file_of = setup()
    stacks = [below(call, *LIBRARY, f"{number}.py") for number in range(3000)]
    for _ in range(2):
        for number, stack in enumerate(stacks):
            assert file_of(stack()) == f"{number}.py"


def test_a_new_trace_defines_its_sites_again() -> None:
    recorder = Recorder(lambda: True)
    sites = Sites(recorder)
    call = below(lambda: sites.above(1), *LIBRARY, "user.py")
    before = [call() for _ in range(3)]
    recorder.begin_again()
    after = [call() for _ in range(3)]
    assert len({*before}) == len({*after}) == 1
    assert before != after


def walks_of(monkeypatch: pytest.MonkeyPatch, *files: str) -> tuple[Call, list[int]]:
    """Return the innermost call, and a list that gets an item for each walk up the stack."""
    sites = Sites(Recorder(lambda: True))
    walks: list[int] = []
    walk = sites.look_above
    monkeypatch.setattr(sites, "look_above", lambda depth: walks.append(depth) or walk(depth + 1))
    return below(lambda: sites.above(1), *files), walks


def test_a_site_that_is_known_is_found_without_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    call, walks = walks_of(monkeypatch, *LIBRARY, "user.py")
    found = {call() for _ in range(10 * LOOK_EVERY)}
    assert len(found) == 1
    assert len(walks) == 11


def test_a_short_stack_needs_no_walk_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program whose own loop calls `torch.distributed`. In a thread, for pytest is deep."""
    if call_sites.make_known_sites is KnownSites:
        pytest.skip("without C each call on a short stack is looked for")
    call, walks = walks_of(monkeypatch, INSIDE, "user.py")
    found: list[int] = []

    def calls() -> None:
        found.extend(call() for _ in range(10 * LOOK_EVERY))

    thread = Thread(target=calls)
    thread.start()
    thread.join()
    assert len(found) == 10 * LOOK_EVERY
    assert len({*found}) == 1
    assert len(walks) == 11
