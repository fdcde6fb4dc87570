"""Public configurations, by `dsprof lint` and by the configuration class of DeepSpeed itself."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dsprof.config.deepspeed import read_config
from dsprof.errors import DsprofError
from dsprof.findings.finding import Status
from dsprof.rules.configuration.rejected_config import RejectedConfig
from dsprof.rules.knowledge.deepspeed.keys import NEWEST
from dsprof.rules.knowledge.releases import release
from tests.factories.ds_config import read, rows
from tests.rules.knowledge.deepspeed.generated import of_sections
from tests.shared_data import folder

RULE = RejectedConfig()

PROGRAM = Path(__file__).parent / "programs" / "configs.py"
BATCH = ("train_batch_size", "gradient_accumulation_steps", "train_micro_batch_size_per_gpu")
OF_THE_ENGINE = ("optimizer.", "scheduler.", "bf16.bf16_master", "zero_optimization.")
"""What the configuration class takes and the engine refuses."""


def test_what_deepspeed_refuses_fails_and_what_it_takes_passes(tmp_path: Path) -> None:
    names, configs = [], []
    for path in sorted((folder("configs")).iterdir()):
        try:
            written = filled_in(read_config(path).values)
        except DsprofError:
            continue  # a template
        names.append(path.name)
        configs.append({key: value for key, value in written.items() if key not in BATCH})
    said = errors_of([{**config, BATCH[-1]: 1} for config in configs], tmp_path)
    assert len(configs) > 40
    for name, config, error in zip(names, configs, said, strict=True):
        findings = [one for one in read(RULE, config) if one.status is Status.FAIL]
        keys = list(rows(findings))
        if error:
            assert keys, (name, error)
        else:
            assert all(key.startswith(OF_THE_ENGINE) for key in keys), (name, keys)


def test_lint_agrees_on_what_is_asked_of_sections_that_parts_of_deepspeed_read(
    tmp_path: Path,
) -> None:
    configs = list(of_sections())
    wrong = [
        (config, error)
        for config, error in zip(configs, errors_of(configs, tmp_path), strict=True)
        if bool(error) is not any(one.status is Status.FAIL for one in read(RULE, config))
    ]
    assert wrong == []


def errors_of(configs: list[dict[str, Any]], folder: Path) -> list[str]:
    """What the configuration class of DeepSpeed says of each, "" where it takes it."""
    if find_spec("deepspeed") is None or (release(version("deepspeed")) or ()) < NEWEST:
        pytest.skip("no DeepSpeed as new as the tables")
    listed = folder / "configs.json"
    listed.write_text(json.dumps(configs))
    command = [sys.executable, PROGRAM, listed]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said: list[str] = json.loads(done.stdout.splitlines()[-1])
    return said


def filled_in(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what transformers would fill in."""
    return {
        key: filled_in(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value != "auto"
    }
