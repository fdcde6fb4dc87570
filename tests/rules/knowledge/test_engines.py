"""What the rules call refused and accepted, against engines that DeepSpeed makes or does not."""

from __future__ import annotations

import json
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dsprof.rules.knowledge.deepspeed import NEWEST, keys
from dsprof.rules.knowledge.releases import release
from dsprof.rules.knowledge.values import takes
from dsprof.rules.rule import Status
from tests.dist.launch import launch
from tests.factories.ds_config import read, zero
from tests.rules.configuration import test_conflicting_config_keys as at_odds
from tests.rules.configuration import test_inert_config_key as inert
from tests.rules.configuration import test_rejected_config as rejected
from tests.rules.configuration import test_unknown_config_key as unknown

PROGRAM = Path(__file__).parent / "programs" / "engines.py"
REFUSED = [
    *rejected.REFUSED.values(),
    *({**zero(), key: {"enabled": False}} for key in rejected.REMOVED),
    *(zero(3, **{key: 1}) for key in rejected.REMOVED_OF_ZERO),
]
ACCEPTED = [
    *rejected.ACCEPTED,
    *({**zero(), key: True} for key in unknown.IGNORED),
    *(written for written, _ in at_odds.FAULTS.values()),
    *(zero(stage, **{key: value}) for stage, key, value in inert.MISSED),
    *(zero(stage, **{key: value}) for stage, key, value in inert.LEFTOVERS),
]


VALUES = (True, 0, -1, 0.5, "x", None, [], {})
OF_THE_MACHINE = (
    *("NotFoundError", "Please install", "CROSS_SIZE"),
    *("device", "GDS", "backend", "accelerator"),
)
"""Errors that another machine would not have."""
CHECKED = sorted(takes().keys() | {path for path, key in keys().items() if key.kind})
UNLIKE = {
    *("fp16.loss_scale", "fp16.min_loss_scale", "fp16.loss_scale_window"),
    "zero_optimization.zenflow.topk_ratio",
}
"""Numbers for which DeepSpeed refuses true, which is 1 everywhere else, or the ends of a range."""


def errors_of(configs: list[dict[str, Any]], folder: Path) -> list[str]:
    """What DeepSpeed says of each configuration, "" where it makes an engine."""
    if find_spec("deepspeed") is None or (release(version("deepspeed")) or ()) < NEWEST:
        pytest.skip("no DeepSpeed as new as the tables")
    written, errors = folder / "configs.json", folder / "errors.json"
    written.write_text(json.dumps(configs))
    launch(PROGRAM, 1, args=[written, errors], timeout=1200).check()
    said: list[str] = json.loads(errors.read_text())
    return said


def one_key(path: str, value: Any) -> dict[str, Any]:
    """A configuration in which one key has a value."""
    *sections, key = path.split(".")
    config = zero(3 if "stage3" in path or "zero" in path else 2)
    place = config
    for section in sections:
        place = place.setdefault(section, {})
    place[key] = value
    return config


@pytest.mark.long
def test_each_value_is_taken_or_refused_as_deepspeed_does(tmp_path):
    paths = [path for path in CHECKED if path not in UNLIKE]
    configs = [one_key(path, value) for path in paths for value in VALUES]
    said = errors_of(configs, tmp_path)
    wrong = [
        (config, error)
        for config, error in zip(configs, said, strict=True)
        if not any(text in error for text in OF_THE_MACHINE)
        if bool(error) is not (read(rejected.RULE, config)[0].status is Status.FAIL)
    ]
    assert wrong == []


@pytest.mark.long
def test_deepspeed_refuses_what_is_called_refused_and_takes_the_rest(tmp_path):
    said = errors_of(REFUSED + ACCEPTED, tmp_path)
    wrong = [
        (config, error)
        for config, error in zip(REFUSED + ACCEPTED, said, strict=True)
        if bool(error) is not (config in REFUSED)
    ]
    assert wrong == []
