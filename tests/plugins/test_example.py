"""`examples/plugin`, installed: its rule judges, its reader reads, its renderer renders."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT, dsprof, environment

STEPS = "# step times of rank {} of 2, ms\n1200\n10\n11\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(2):
        (tmp_path / f"steps{rank}.txt").write_text(STEPS.format(rank))
    return tmp_path


def test_its_rule_is_listed_with_its_package_and_explained(tmp_path: Path, example: Path) -> None:
    listed = dsprof("rules", cwd=tmp_path, env=environment(example)).stdout
    entry = listed.split("  slow-first-step: The first step is slow\n")[1]
    assert [line.strip() for line in entry.splitlines()[:3]] == [
        "needs first steps",
        "thresholds times=10.0",
        "from dsprof-example 1.0",
    ]
    page = dsprof("explain", "slow-first-step", cwd=tmp_path, env=environment(example))
    source = ROOT / "examples" / "plugin" / "dsprof_example" / "slow-first-step.md"
    title, _, first = source.read_text().splitlines()[:3]
    assert page.stdout.startswith(f"{title.removeprefix('# ')}\n\n{first}\n")


def test_a_report_has_its_finding_and_its_format(folder: Path, example: Path) -> None:
    env = environment(example)
    done = dsprof("report", ".", "--format", "markdown", cwd=folder, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "- **The first step is slow**: The first step takes 1200 ms." in done.stdout
    page = dsprof("report", ".", "--format", "html", "-o", "-", cwd=folder, env=env).stdout
    (about,) = re.findall(r"About the rule <code>slow-first-step.*?</details>", page, re.DOTALL)
    assert "<code>times</code> 10.0" in about
    assert "From the package dsprof-example 1.0." in about
    (folder / "dsprof.yaml").write_text("rules: {slow-first-step: {times: 200}}")
    text = dsprof("report", ".", "--format", "json", "--config", "dsprof.yaml", cwd=folder, env=env)
    made = json.loads(text.stdout)
    (finding,) = (one for one in made["findings"] if one["rule"] == "slow-first-step")
    assert (finding["status"], finding["docs"]) == ("pass", "")
    assert made["steps"]["total"]["exposed_comm_ns"] is None
    assert "exposed communication unknown" in made["verdict"]


@pytest.mark.parametrize("way", ["--no-plugins", "DSPROF_PLUGINS"])
def test_without_plugins_it_is_as_if_it_were_not_installed(
    folder: Path, example: Path, way: str
) -> None:
    option = [way] if way.startswith("-") else []
    env = environment(example, **({} if option else {way: "0"}))
    listed = dsprof("rules", *option, cwd=folder, env=env)
    assert "slow-first-step" not in listed.stdout
    assert listed.stdout == dsprof("rules", cwd=folder).stdout
    refused = dsprof("report", ".", "--format", "markdown", *option, cwd=folder, env=env)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "unknown --format value 'markdown'" in refused.stderr
    unread = dsprof("report", ".", *option, cwd=folder, env=env)
    assert unread.returncode == 2


def test_its_own_tests_pass(tmp_path: Path, example: Path) -> None:
    tests = ROOT / "examples" / "plugin" / "tests"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        cwd=tmp_path,
        env=environment(example),
        check=True,
    )
