from __future__ import annotations

import pytest

from dsprof.rules.knowledge.releases import release, version


@pytest.mark.parametrize(
    ("text", "three", "all_of_them"),
    [
        ("0.19.8+cpu", (0, 19, 8), (0, 19, 8)),
        ("7.13", None, (7, 13)),
        ("none", None, ()),
        (f"{'9' * 5000}.1.2", None, (999_999_999,)),
    ],
)
def test_a_release_is_the_numbers_that_it_begins_with(text, three, all_of_them):
    assert release(text) == three
    assert version(text) == all_of_them
