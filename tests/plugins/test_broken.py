"""Plugins that fail in every way there is: each is named, and harms nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import dsprof, environment, install
from tests.factories.trace_files import write_run

MODULE = """
from dataclasses import dataclass, replace
from dsprof.api import Aggregate, Column, Rule, RuleMeta, Status, Table

@dataclass(frozen=True)
class Limits:
    share: float = 0.5

@dataclass(frozen=True)
class OddLimits:
    share: object = 0.5

class Base:
    thresholds = Limits()
    def __init__(self, id, needs=(), thresholds=Limits(), **more):
        self.meta = RuleMeta(id=id, title="Fine", failing_title="<script>bad</script>",
                             why="w", category="steps", needs=needs, **more)
        self.thresholds = thresholds
    def check(self, run, thresholds):
        return self.findings(self.meta)
    def findings(self, meta):
        yield meta.finding(Status.INFO, "hello <script>alert(1)</script>")

class Raises(Base):
    def findings(self, meta):
        raise KeyError("odd \\x1b[31m")

class Exits(Base):
    def findings(self, meta):
        raise SystemExit(7)

class Panic(BaseException):
    "As code in Rust raises."

class Panics(Base):
    def findings(self, meta):
        raise Panic("unwrap on None")

class Answers(Base):
    def __init__(self, id, *answers):
        super().__init__(id)
        self.answers = answers
    def findings(self, meta):
        for answer in self.answers:
            yield answer(meta) if callable(answer) else answer

@dataclass(frozen=True)
class Collects(Aggregate):
    @classmethod
    def collect(cls, trace, clock):
        raise ZeroDivisionError("no collect")
    def merge(self, other):
        return self

@dataclass(frozen=True)
class Merges(Aggregate):
    @classmethod
    def collect(cls, trace, clock):
        return cls()
    def merge(self, other):
        return 5

class Holds(Aggregate):
    @classmethod
    def collect(cls, trace, clock):
        made = cls()
        made.function = lambda: 5
        return made
    def merge(self, other):
        return self

def inside():
    class Inside(Aggregate):
        @classmethod
        def collect(cls, trace, clock):
            return cls()
        def merge(self, other):
            return self
    return Inside

good = Base("good")
shadow = Base("late-rank")
twin = Base("good")
a_class = Base
no_id = Base("Not An Id")
odd_title = Base("odd-title"); odd_title.meta = replace(odd_title.meta, title=5)
odd_limits = Base("odd-limits", thresholds=OddLimits())
odd_needs = Base("odd-needs", needs=(int,))
nothing = None
raises = Raises("raises")
exits = Exits("exits")
no_finding = Answers("no-finding", "text")
odd_text = Answers("odd-text", lambda meta: meta.finding(Status.FAIL, 5))
odd_saving = Answers("odd-saving", lambda meta: meta.finding(
    Status.FAIL, "x", saving_ms_per_step=(0.0, 0.0)))
odd_cell = Answers("odd-cell", lambda meta: meta.finding(
    Status.FAIL, "x", evidence=(Table((Column("c"),), ((object(),),)),)))
other_rule = Answers("other-rule", lambda meta: replace(meta, id="late-rank").finding(
    Status.INFO, "in the name of another"))
collects = Base("collects", needs=(Collects,))
merges = Base("merges", needs=(Merges,))
panics = Panics("panics")
huge_saving = Answers("huge-saving", lambda meta: meta.finding(
    Status.FAIL, "x", saving_ms_per_step=(1e308, 1e308), exposed_per_saving=0.0))
holds = Base("holds", needs=(Holds,))
needs_inside = Base("needs-inside", needs=(inside(),))
"""
LOADED = ("good", "raises", "exits", "no-finding", "odd-text", "odd-saving", "odd-cell")
LOADED += ("other-rule", "collects", "merges", "panics", "huge-saving", "holds")
REFUSED = {
    "shadow": "'late-rank' is built in, and a plugin cannot replace it",
    "twin": "another plugin is called 'good', too",
    "a_class": "it is a class",
    "no_id": "its id must be",
    "odd_title": "its title must be text",
    "odd_limits": "odd_limits",
    "odd_needs": "each of its needs must be a subclass of Aggregate",
    "needs_inside": "inside.<locals>.Inside",
    "panics_loaded": "BaseException: no luck",
    "nothing": "AttributeError",
    "absent": "AttributeError",
    "needs_torch": "plugins of the report must not import torch",
    "leaves": "SystemExit",
    "missing": "ModuleNotFoundError",
}
ERRORS = {
    "raises": "KeyError",
    "exits": "it called sys.exit()",
    "no-finding": "a finding must be a Finding, got str",
    "odd-text": "ValidationError",
    "odd-saving": "saving_ms_per_step must be finite",
    "odd-cell": "TypeError",
    "collects": "ZeroDivisionError: no collect",
    "merges": "it gave a int",
    "panics": "Panic: unwrap on None",
    "huge-saving": "saving_ms_per_step must be finite",
    "holds": "<lambda>",
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    names = [name.replace("-", "_") for name in (*LOADED, *REFUSED)]
    apart = {
        "needs_torch": "odd_torch:x",
        "leaves": "odd_exit:x",
        "panics_loaded": "odd_panic:x",
        "missing": "odd_not_there:x",
    }
    lines = [f"{name} = {apart.get(name, f'odd_rules:{name}')}" for name in names]
    points = "\n".join(["[dsprof.rules]", *lines])
    install(folder, "odd-rules", "2.5", entry_points=points)
    (folder / "odd_rules.py").write_text(MODULE)
    (folder / "odd_torch.py").write_text("import torch\n")
    (folder / "odd_exit.py").write_text("raise SystemExit(3)\n")
    (folder / "odd_panic.py").write_text("raise BaseException('no luck')\n")
    return folder


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    write_run(folder)
    return folder


def report(folder: Path, *options: str, **env: Any) -> tuple[dict[str, Any], str]:
    done = dsprof("report", folder, "--format", "json", *options, cwd=folder, **env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def shown(packages: Path, traces: Path) -> tuple[dict[str, Any], str]:
    return report(traces, env=environment(packages))


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_what_cannot_be_loaded_is_named_in_the_data_quality_and_on_the_terminal(
    shown: tuple[dict[str, Any], str], name: str, why: str
) -> None:
    diagnosis, said = shown
    begin = f"Plugin {name} of package odd-rules 2.5 could not be loaded: "
    (note,) = (one for one in diagnosis["quality"]["notes"] if one.startswith(begin))
    assert why in note
    assert f"dsprof: {note}\n" in said


@pytest.mark.parametrize(("rule", "why"), ERRORS.items())
def test_a_rule_that_breaks_is_an_error_with_its_package(
    shown: tuple[dict[str, Any], str], rule: str, why: str
) -> None:
    (finding,) = (one for one in shown[0]["findings"] if one["rule"] == rule)
    assert finding["status"] == "error"
    assert why in finding["summary"]
    assert "package odd-rules 2.5" in finding["summary"]
    assert "maintainers of odd-rules 2.5" in finding["action"]


def test_the_built_in_rules_answer_as_without_plugins(
    shown: tuple[dict[str, Any], str], traces: Path
) -> None:
    alone, _ = report(traces)
    ours = [one for one in shown[0]["findings"] if one["rule"] not in LOADED]
    assert ours == alone["findings"]


def test_a_finding_is_of_the_rule_that_made_it(shown: tuple[dict[str, Any], str]) -> None:
    (finding,) = (one for one in shown[0]["findings"] if one["rule"] == "other-rule")
    assert (finding["summary"], finding["docs"]) == ("in the name of another", "")


def test_texts_of_plugins_are_escaped_on_the_page(packages: Path, traces: Path) -> None:
    page = traces / "report.html"
    done = dsprof("report", traces, cwd=traces, env=environment(packages))
    html = page.read_text()
    page.unlink()
    assert done.returncode == 0
    assert "alert(1)" in html
    assert "<script>alert" not in html
    assert "<script>bad" not in html
    assert "\x1b" not in html + done.stdout + done.stderr


def test_a_plugin_that_is_broken_does_not_fail_lint(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1}')
    done = dsprof("lint", "ds.json", cwd=tmp_path, env=environment(packages))
    assert done.returncode == 0
    assert "Plugin shadow of package odd-rules 2.5" in done.stderr
