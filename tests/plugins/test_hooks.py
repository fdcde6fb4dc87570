"""Hooks of plugins in a real run: those that are named record, and those that fail are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.native import READER
from tests.cli.command import environment, install

MODULE = """
from dsprof.api import Hook, Target

class Counts(Hook):
    name = "counts"
    targets = (Target("statistics", "", "fmean", "an example"),)
    calls = 0
    def wrap(self, target, original):
        def before(*args, **kwargs):
            Counts.calls += 1
        return self.around(original, before, lambda token: None)

class Misnamed(Counts):
    name = "another"

class Fails(Counts):
    name = "fails"
    def __init__(self, recorder):
        raise ZeroDivisionError("not today")

class Lacks(Counts):
    name = "lacks"
    targets = (Target("statistics", "", "nothing_there", "an example"),)

class Odd(Counts):
    name = "odd"
    targets = ("statistics.fmean",)

class Shadows(Counts):
    name = "c10d"

not_a_hook = 5
"""
PROGRAM = """
import statistics, sys
import dsprof
dsprof.enable(out="out")
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(2)
for _ in range(2):
    dist.all_reduce(tensor)
    assert statistics.fmean([1, 2]) == 1.5
    dsprof.step()
dsprof.disable()
dist.destroy_process_group()
module = sys.modules.get("odd_hooks")
print(module.Counts.calls if module else "not loaded", statistics.fmean.__name__)
"""
NAMES = "counts,misnamed,fails,lacks,odd,c10d,not_a_hook,absent,unheard_of"


def run(folder: Path, **variables: str) -> tuple[str, RankTrace]:
    classes = {"counts": "Counts", "misnamed": "Misnamed", "fails": "Fails", "lacks": "Lacks"}
    classes |= {"odd": "Odd", "c10d": "Shadows", "not_a_hook": "not_a_hook", "absent": "Absent"}
    points = "\n".join(f"{name} = odd_hooks:{value}" for name, value in classes.items())
    install(folder, "odd-hooks", "3", entry_points=f"[dsprof.hooks]\n{points}\n")
    (folder / "odd_hooks.py").write_text(MODULE)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=environment(folder, **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (file,) = (folder / "out").glob("trace*.json")
    (trace,) = READER.read_traces(file)
    return done.stdout.strip(), trace


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, RankTrace]:
    return run(tmp_path_factory.mktemp("hooks"), DSPROF_HOOKS=NAMES)


def test_a_named_hook_is_installed_and_taken_out(ran: tuple[str, RankTrace]) -> None:
    said, trace = ran
    assert int(said.split()[0]) >= 1
    assert said.split()[1] == "fmean"
    assert [hook.installed for hook in trace.hooks if hook.name == "plugin counts"] == [True]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("misnamed", "package odd-hooks 3: ValueError: its name is 'another'"),
        ("fails", "package odd-hooks 3: ZeroDivisionError: not today"),
        ("odd", "package odd-hooks 3: TypeError: each of its targets must be a Target"),
        ("not_a_hook", "it is no subclass of dsprof.api.Hook"),
        ("absent", "AttributeError"),
        ("c10d", "it is built in"),
        ("unheard_of", "no installed package has a hook of this name"),
    ],
)
def test_one_that_fails_is_named_in_the_trace(
    ran: tuple[str, RankTrace], name: str, why: str
) -> None:
    trailer = ran[1].trailer
    assert trailer is not None
    assert why in trailer.failed_hooks[f"plugin {name}"]


def test_one_whose_target_is_missing_is_off(ran: tuple[str, RankTrace]) -> None:
    (status,) = (hook for hook in ran[1].hooks if hook.name == "plugin lacks")
    assert not status.installed
    assert "nothing_there" in status.why


def test_the_run_is_recorded_all_the_same(ran: tuple[str, RankTrace]) -> None:
    assert len(ran[1].steps) == 2
    assert len(ran[1].collectives) == 2


def test_a_hook_that_is_not_named_is_not_loaded(tmp_path: Path) -> None:
    said, trace = run(tmp_path)
    assert said.split()[:2] == ["not", "loaded"]
    assert trace.trailer is not None
    assert trace.trailer.failed_hooks == {}


def test_without_plugins_none_is_loaded(tmp_path: Path) -> None:
    said, trace = run(tmp_path, DSPROF_HOOKS=NAMES, DSPROF_PLUGINS="0")
    assert said.split()[:2] == ["not", "loaded"]
    assert trace.trailer is not None
    assert trace.trailer.failed_hooks == {}
