from __future__ import annotations

import math
from typing import Any

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.configuration.batch_size_mismatch import BatchSizeMismatch
from tests.factories.ds_config import ran, read

RULE = BatchSizeMismatch()


def sizes(train: Any = None, micro: Any = None, steps: Any = None) -> dict[str, Any]:
    given = {
        "train_batch_size": train,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
    }
    return {"steps_per_print": 1, **{key: size for key, size in given.items() if size is not None}}


@pytest.mark.parametrize(
    ("written", "ranks"),
    [
        (sizes(24, 3), "divides 8"),
        (sizes(24, steps=3), "divides 8"),
        (sizes(24), "divides 24"),
        (sizes(24.0, 3.0), "divides 8"),
        (sizes(6, 1, 1), "is 6"),
    ],
)
def test_sizes_that_fit_some_ranks_are_information(written, ranks):
    (finding,) = read(RULE, written)
    assert finding.status is Status.INFO
    assert finding.summary.endswith(f"data-parallel ranks {ranks}.")


@pytest.mark.parametrize("written", [sizes(25, 3), sizes(25, steps=3), sizes(8, 3, 2)])
def test_sizes_that_fit_nothing_fail(written):
    (finding,) = read(RULE, written)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)


@pytest.mark.parametrize(
    ("written", "action", "followed"),
    [
        (sizes(7, 2, 2), "Delete train_batch_size: ", sizes(None, 2, 2)),
        (sizes(25, 3), "Delete train_batch_size: ", sizes(None, 3)),
        (sizes(25, steps=3), "Set train_batch_size to a multiple of", sizes(27, steps=3)),
        (sizes(24, 3), "Delete train_batch_size to", sizes(None, 3)),
        (sizes(24), "Set train_micro_batch_size_per_gpu instead of", sizes(micro=24)),
        (sizes(24, steps=3), "Set train_micro_batch_size_per_gpu instead of", sizes(None, 8, 3)),
    ],
)
def test_advice_that_was_followed_leaves_sizes_that_fit(written, action, followed):
    assert read(RULE, written)[0].action.startswith(action)
    assert read(RULE, followed)[0].status is not Status.FAIL
    assert "unless accelerate" not in read(RULE, followed)[0].action


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        (sizes(-8, 2), "train_batch_size"),
        (sizes(math.nan), "train_batch_size"),
        (sizes(-1, -1), "train_batch_size and train_micro_batch_size_per_gpu"),
        (sizes("auto", "8"), "train_micro_batch_size_per_gpu"),
        (sizes(8, steps=1.5), "gradient_accumulation_steps"),
    ],
)
def test_what_is_no_size_is_to_be_set_not_deleted(written, keys):
    (finding,) = read(RULE, written)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    what = "whole numbers" if " and " in keys else "a whole number"
    assert finding.summary == f"{keys} must be {what} of at least 1."
    assert finding.action.startswith(f"Set {keys} to")


@pytest.mark.parametrize(
    "written", [sizes(micro=4), sizes(micro=4, steps=2), sizes("auto", 4, 3), sizes("auto", "auto")]
)
def test_sizes_that_fit_every_number_of_ranks_pass(written):
    assert read(RULE, written)[0].status is Status.PASS


def test_sizes_that_somebody_else_must_give_are_information():
    assert read(RULE, sizes(steps=2))[0].status is Status.INFO


def test_of_an_engine_that_runs_they_fitted():
    assert ran(RULE, sizes(24, 3))[0].status is Status.PASS
