"""What the rules call refused and accepted, against engines that DeepSpeed makes or does not."""

from __future__ import annotations

import json
import random
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.knowledge.deepspeed.keys import NEWEST
from dsprof.rules.knowledge.releases import release
from tests.dist.launch import launch
from tests.factories.ds_config import read, zero
from tests.rules.configuration import test_batch_size_mismatch as batch_sizes
from tests.rules.configuration import test_conflicting_config_keys as at_odds
from tests.rules.configuration import test_inert_config_key as inert
from tests.rules.configuration import test_rejected_config as rejected
from tests.rules.configuration import test_unknown_config_key as unknown
from tests.rules.knowledge.deepspeed.generated import (
    filled_in,
    of_pairs,
    of_single_keys,
    with_settings,
)

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


BEYOND_THE_FILE = {
    "Please install DataStates": "a package",
    "No module named": "a package",
    "MuAdam": "a package, mup",
    "MuSGD": "a package, mup",
    "CROSS_SIZE": "a variable of the launcher",
    "GDS": "a CUDA device",
    "SuperOffload only supports": "a CUDA device",
    "client provided optimizer": "the optimizer of the program",
    "unexpected keyword argument": "what an optimizer takes, which is the optimizer's own",
}
"""What DeepSpeed refuses for another reason than the configuration, each with the reason."""

ODD = (
    ("gradient_accumulation_steps", 0.5),  # taken, and of no sense
    ("train_micro_batch_size_per_gpu", 0.5),
    ("train_micro_batch_size_per_gpu", None),  # a note: accelerate fills it in
    ("gradient_predivide_factor", None),
    ("bfloat16", None),
    ("tensor_parallel.autotp_size", 2),  # refused on one rank
    ("tensor_parallel.autotp_size", "auto"),
    ("fp16.loss_scale", True),
    ("fp16.loss_scale", False),
)
"""Values that DeepSpeed and lint see in different ways."""


def errors_of(configs: list[dict[str, Any]], folder: Path) -> list[str]:
    """What DeepSpeed says of each configuration, "" where it makes an engine."""
    if find_spec("deepspeed") is None or (release(version("deepspeed")) or ()) < NEWEST:
        pytest.skip("no DeepSpeed as new as the tables")
    written, errors = folder / "configs.json", folder / "errors.json"
    written.write_text(json.dumps(configs))
    launch(PROGRAM, 1, args=[written, errors], timeout=1200, imported="compiler").check()
    said: list[str] = json.loads(errors.read_text())
    return said


SAMPLE = 400
"""DeepSpeed makes some 15 engines a second; there are 17,000 configurations."""


@pytest.mark.long
@pytest.mark.parametrize("generated", [of_single_keys, of_pairs])
def test_lint_fails_where_deepspeed_makes_no_engine(generated, tmp_path):
    odd = [with_settings(2, setting) for setting in ODD]
    odd.append(with_settings(3, ("zero_optimization.zenflow.topk_ratio", "1e3")))
    configs = [one for one in generated() if one not in odd]
    configs = random.Random(0).sample(configs, SAMPLE)
    said = errors_of([filled_in(config) for config in configs], tmp_path)
    wrong = [
        (config, error)
        for config, error in zip(configs, said, strict=True)
        if bool(error) is not fails(config)
        if not (error and any(text in error for text in BEYOND_THE_FILE))
    ]
    assert wrong == []


def fails(config: dict[str, Any]) -> bool:
    rules = (rejected.RULE, batch_sizes.RULE)
    return any(one.status is Status.FAIL for rule in rules for one in read(rule, config))


@pytest.mark.long
def test_deepspeed_refuses_what_is_called_refused_and_takes_the_rest(tmp_path):
    said = errors_of([filled_in(one) for one in REFUSED + ACCEPTED], tmp_path)
    wrong = [
        (config, error)
        for config, error in zip(REFUSED + ACCEPTED, said, strict=True)
        if bool(error) is not (config in REFUSED)
    ]
    assert wrong == []
