"""What the rules call refused and accepted, against engines that DeepSpeed makes or does not."""

from __future__ import annotations

import json
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsprof.rules.knowledge.deepspeed import NEWEST
from dsprof.rules.knowledge.releases import release
from tests.dist.launch import launch
from tests.factories.ds_config import zero
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


@pytest.mark.long
def test_deepspeed_refuses_what_is_called_refused_and_takes_the_rest(tmp_path):
    if find_spec("deepspeed") is None or (release(version("deepspeed")) or ()) < NEWEST:
        pytest.skip("no DeepSpeed as new as the tables")
    configs, errors = tmp_path / "configs.json", tmp_path / "errors.json"
    configs.write_text(json.dumps(REFUSED + ACCEPTED))
    launch(PROGRAM, 1, args=[configs, errors]).check()
    said = json.loads(errors.read_text())
    wrong = [
        (config, error)
        for config, error in zip(REFUSED + ACCEPTED, said, strict=True)
        if bool(error) is not (config in REFUSED)
    ]
    assert wrong == []
