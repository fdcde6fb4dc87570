"""The example for GitHub Actions, read."""

from __future__ import annotations

import shlex

import yaml

from tests.cli.command import ROOT


def workflow_commands(program: str) -> list[list[str]]:
    """The arguments of each call of a program in the steps of the workflow."""
    workflow = yaml.safe_load((ROOT / "examples" / "github-actions.yml").read_text())
    scripts = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    lines = "\n".join(scripts).replace("\\\n", " ").splitlines()
    return [words[1:] for line in lines if (words := shlex.split(line))[:1] == [program]]
