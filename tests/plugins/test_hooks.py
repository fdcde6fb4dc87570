"""Hooks of plugins in a real run: those that are named record, and those that fail are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.native import READER
from tests.cli.command import dsprof, environment, install

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

class Panic(BaseException):
    "As code in Rust raises."

class PanicsMade(Counts):
    name = "panics_made"
    def __init__(self, recorder):
        raise Panic("made")

class PanicsInstalled(Counts):
    name = "panics_installed"
    def install(self, module):
        raise Panic("installed")

class PanicsBefore(Counts):
    name = "panics_before"
    def wrap(self, target, original):
        def before(*args, **kwargs):
            raise Panic("before")
        return self.around(original, before, lambda token: None)

class Forgets(Counts):
    name = "forgets"
    def wrap(self, target, original):
        self.around(original, lambda *args: None, lambda token: None)

class Unbinds(Counts):
    name = "unbinds"
    targets = (Target("statistics", "NormalDist", "from_samples", "a class method"),)

class Covers(Counts):
    name = "covers"
    targets = (Target("statistics", "NormalDist", "mean", "a property"),)

class Replaces(Counts):
    name = "replaces"
    targets = (Target("statistics", "", "NormalDist", "a class"),)

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
    normal = statistics.NormalDist.from_samples([1, 2])
    assert (type(normal), normal.mean) == (statistics.NormalDist, 1.5)
    dsprof.step()
dsprof.disable()
dist.destroy_process_group()
module = sys.modules.get("odd_hooks")
print(module.Counts.calls if module else "not loaded", statistics.fmean.__name__)
"""
CLASSES = {
    "counts": "Counts",
    "misnamed": "Misnamed",
    "fails": "Fails",
    "lacks": "Lacks",
    "odd": "Odd",
    "c10d": "Shadows",
    "not_a_hook": "not_a_hook",
    "absent": "Absent",
    "panics_made": "PanicsMade",
    "panics_installed": "PanicsInstalled",
    "panics_before": "PanicsBefore",
    "forgets": "Forgets",
    "unbinds": "Unbinds",
    "covers": "Covers",
    "replaces": "Replaces",
}
NAMES = ",".join([*CLASSES, "panics_loaded", "unheard_of"])


def install_hooks(folder: Path) -> None:
    points = "\n".join(f"{name} = odd_hooks:{value}" for name, value in CLASSES.items())
    points += "\npanics_loaded = panics:Hook\n"
    install(folder, "odd-hooks", "3", entry_points=f"[dsprof.hooks]\n{points}\n")
    (folder / "odd_hooks.py").write_text(MODULE)
    (folder / "panics.py").write_text("raise BaseException('loaded')")


def run(folder: Path, **variables: str) -> tuple[str, RankTrace]:
    install_hooks(folder)
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
        ("panics_loaded", "package odd-hooks 3: BaseException: loaded"),
        ("panics_made", "package odd-hooks 3: Panic: made"),
        ("panics_before", "Panic: before"),
    ],
)
def test_one_that_fails_is_named_in_the_trace(
    ran: tuple[str, RankTrace], name: str, why: str
) -> None:
    trailer = ran[1].trailer
    assert trailer is not None
    assert why in trailer.failed_hooks[f"plugin {name}"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("lacks", "nothing_there"),
        ("panics_installed", "installed"),
        ("forgets", "wrap must return a function for fmean, and returned a NoneType"),
        ("unbinds", "wrap must return a staticmethod for from_samples, a classmethod"),
        ("covers", "wrap must return a property for mean, and returned a function"),
        ("replaces", "wrap must return a type for NormalDist, and returned a function"),
    ],
)
def test_one_that_does_not_fit_its_target_is_off(
    ran: tuple[str, RankTrace], name: str, why: str
) -> None:
    (status,) = (hook for hook in ran[1].hooks if hook.name == f"plugin {name}")
    assert not status.installed
    assert why in status.why


def test_doctor_says_which_are_off(tmp_path: Path) -> None:
    install_hooks(tmp_path)
    env = environment(tmp_path, DSPROF_HOOKS="counts,panics_loaded,forgets,unheard_of")
    done = dsprof("doctor", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    (complete,) = [line for line in done.stdout.splitlines() if "complete hooks:" in line]
    assert complete.endswith(", plugin counts")
    off = [line.split()[3] for line in done.stdout.splitlines() if "note  hook plugin" in line]
    assert sorted(off) == ["forgets:", "panics_loaded:", "unheard_of:"]


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
