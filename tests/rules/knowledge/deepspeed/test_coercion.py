from __future__ import annotations

import pytest

from dsprof.rules.knowledge.deepspeed.values import fits

TAKEN = [(True, "bool"), (0, "bool"), ("Yes", "bool"), (5e8, "int"), ("12", "int"), (True, "int")]
TAKEN += [(None, "bool?"), (10**400, "int"), (3, "float"), ("1e-3", "float")]
NOT_TAKEN = [(5, "bool"), ("ture", "bool"), ([], "bool"), (1.5, "int"), ("5e8", "int")]
NOT_TAKEN += [(None, "int"), ("x", "float"), ({}, "float")]


@pytest.mark.parametrize(("value", "kind"), TAKEN)
def test_values_that_pydantic_takes(value, kind):
    assert fits(value, kind)


@pytest.mark.parametrize(("value", "kind"), NOT_TAKEN)
def test_values_that_it_does_not(value, kind):
    assert not fits(value, kind)
