from __future__ import annotations

import pytest

from dsprof.rules.evidence.growth import slows_down


@pytest.mark.parametrize(
    ("rises", "slows"),
    [
        ((1.75, 1.45, 1.2, 1), True),
        ((1.6, 1.35, 1.16, 1), False),  # 78 % of the mean in the last part
        ((4, 2, 2, 1), False),  # not less in each part than in the one before
        ((1, 1, 1, 1), False),
    ],
)
def test_growth_slows_down_in_each_part_and_by_a_quarter(rises, slows):
    assert slows_down(rises) is slows
