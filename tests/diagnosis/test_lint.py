"""Public configurations of others, with the verdicts that DeepSpeed and its sources give."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import pytest

from dsprof.config.deepspeed import WrittenConfig, read_config
from dsprof.diagnosis.lint import config_rules, lint
from dsprof.errors import ConfigError
from dsprof.findings.finding import Finding, Status
from tests import shared_data
from tests.factories.ds_config import rows, zero

REFUSED = "rejected-config"


class Verdict(NamedTuple):
    """A row of the table beside the configurations."""

    name: str
    says: str  # DeepSpeed 0.19.8
    warnings: str
    good_lint: str


@cache
def verdicts() -> list[Verdict]:
    if not shared_data.FOLDER.is_dir():
        return []
    lines = (shared_data.FOLDER / "README.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    names = {path.name for path in (shared_data.FOLDER / "configs").iterdir()}
    found = []
    for row in cells:
        if row[0] in names:
            row = row if len(row) == 5 else [*row[:3], "", row[-1]]
            found.append(Verdict(row[0], row[2], row[3].strip("| "), row[4]))
    return found


def readable() -> list[Verdict]:
    """Return those that are JSON; the test is skipped where the data is absent."""
    shared_data.folder("configs")
    return [one for one in verdicts() if "not valid JSON" not in one.says]


@cache
def judged(name: str) -> dict[str, list[Finding]]:
    config = read_config(shared_data.folder("configs") / name)
    found: dict[str, list[Finding]] = {}
    for finding in lint(config, "0.19.8"):
        found.setdefault(finding.rule, []).append(finding)
    return found


def keys_of(name: str, rule: str, status: Status) -> list[str]:
    return list(rows([one for one in judged(name)[rule] if one.status is status]))


def test_all_configurations_have_a_verdict():
    shared_data.folder("configs")
    assert len(verdicts()) == 52


def test_templates_cannot_be_read():
    folder = shared_data.folder("configs")
    unread = [one.name for one in verdicts() if "not valid JSON" in one.says]
    assert len(unread) == 2
    for name in unread:
        with pytest.raises(ConfigError, match="line 2"):
            read_config(folder / name)


def test_what_deepspeed_refuses_fails_and_nothing_else(subtests: pytest.Subtests):
    for verdict in readable():
        with subtests.test(verdict.name):
            refused = "Error" in verdict.says
            # DeepSpeedConfig takes those, the engine does not.
            removed_optimizer = re.search("1-bit|OneBit", verdict.name + verdict.good_lint)
            assert bool(keys_of(verdict.name, REFUSED, Status.FAIL)) is bool(
                refused or removed_optimizer
            )


def test_the_key_that_deepspeed_names_is_named(subtests: pytest.Subtests):
    for verdict in readable():
        with subtests.test(verdict.name):
            named = re.findall(
                r"'(\w+)'|Config (\w+)  |Config (\w+) Extra|Config (\w+):", verdict.says
            )
            keys = keys_of(verdict.name, REFUSED, Status.FAIL)
            for name in {next(filter(None, names)) for names in named}:
                assert any(name in key.split(".") for key in keys), name


def test_keys_without_effect_are_listed(subtests: pytest.Subtests):
    for verdict in readable():
        with subtests.test(verdict.name):
            inert = [
                key.removeprefix("zero_optimization.")
                for status in (Status.FAIL, Status.INFO)
                for key in keys_of(verdict.name, "inert-config-key", status)
            ]
            for names in re.findall(r"-only keys have no effect: ([\w, ]+)", verdict.good_lint):
                assert set(names.split(", ")) <= set(inert)
            if "every other zero_optimization key is inert" in verdict.good_lint:
                config = read_config(shared_data.folder("configs") / verdict.name)
                assert set(inert) == config.values["zero_optimization"].keys() - {"stage"}


def test_unknown_keys_are_listed(subtests: pytest.Subtests):
    for verdict in readable():
        with subtests.test(verdict.name):
            found = [
                key
                for status in (Status.FAIL, Status.INFO)
                for key in keys_of(verdict.name, "unknown-config-key", status)
            ]
            named = re.search(r"silently ignored: ([^;(]+)(?:\(\+(\d+)\))?", verdict.good_lint)
            top = [key for key in found if "." not in key]
            if named is None:
                assert top == []
            else:
                names = named[1].strip().split(", ")
                assert top[: len(names)] == names
                assert len(top) == len(names) + int(named[2] or 0)


def test_settings_that_do_not_what_they_say(subtests: pytest.Subtests):
    for verdict in readable():
        with subtests.test(verdict.name):
            found = judged(verdict.name)["conflicting-config-keys"]
            summaries = " ".join(finding.summary for finding in found)
            by_design = "still issues all_reduce" in verdict.good_lint
            assert ("reduce gradients by all-reduce" in summaries) is by_design
            assert ("wall_clock_breakdown" in summaries) is ("wall_clock" in verdict.good_lint)
            if re.search(r"overlap_comm off .* at stage [123]", verdict.good_lint):
                assert "zero_optimization.overlap_comm: without it" in summaries
            failed = [finding for finding in found if finding.status is Status.FAIL]
            assert bool(failed) is ("wall_clock" in verdict.good_lint)


def test_values_that_others_fill_in_are_counted(subtests: pytest.Subtests):
    for verdict in readable():
        with subtests.test(verdict.name):
            count = re.search(r'(\d+) "auto" values', verdict.good_lint)
            keys = keys_of(verdict.name, "unfilled-auto-value", Status.INFO)
            assert len(keys) == (int(count[1]) if count else 0)


def test_the_ranks_that_batch_sizes_fit(subtests: pytest.Subtests):
    for verdict in readable():
        with subtests.test(verdict.name):
            (finding,) = judged(verdict.name)["batch-size-mismatch"]
            assert finding.status is not Status.FAIL
            fits = re.search(r"world divides (\d+)|world size (\d+)", verdict.good_lint)
            if fits:
                ranks = int(fits[1] or fits[2])
                assert finding.summary.endswith(
                    f"{'divides' if fits[1] and ranks > 1 else 'is'} {ranks:,}."
                )


def test_old_names_are_those_of_which_deepspeed_warns(subtests: pytest.Subtests):
    for verdict in readable():
        with subtests.test(verdict.name):
            keys = keys_of(verdict.name, "deprecated-config-key", Status.INFO)
            warned = re.findall(r"parameter (\w+) is deprecated", verdict.warnings)
            assert [key.rpartition(".")[2] for key in keys] == warned


def judge(values: dict[str, Any], deepspeed: str = "0.19.8") -> dict[str, Finding]:
    config = WrittenConfig(values, {key: n for n, key in enumerate(values, 1)}, True)
    return {finding.rule: finding for finding in lint(config, deepspeed)}


def test_every_rule_on_configurations_answers():
    rules = {rule.meta.id for rule in config_rules()}
    assert judge(zero(3)).keys() == rules
    assert {"comms-logger-enabled", "unknown-config-key"} <= rules


def test_a_logger_that_says_disabled_is_on():
    finding = judge({**zero(3), "comms_logger": {"enabled": False}})["comms-logger-enabled"]
    assert finding.status is Status.FAIL
    assert "the presence of the block turns it on" in finding.summary


def test_findings_tell_the_line():
    finding = judge({**zero(3), "zero_optimisation": {}})["unknown-config-key"]
    labels = [column.label for column in finding.evidence[0].columns]
    assert dict(zip(labels, finding.evidence[0].rows[0], strict=True))["line"] == 3


def test_without_a_release_the_newest_judges_and_says_so():
    finding = judge({**zero(3), "elasticity": {}}, "")[REFUSED]
    assert "the newest known" in finding.summary
