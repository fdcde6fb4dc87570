from __future__ import annotations

import pytest

from dsprof.analysis.rank_sets import rank_set, ranks_of, written_ranks


@pytest.mark.parametrize(
    ("ranks", "written"),
    [((), ""), ((0,), "0"), ((0, 1, 2, 3, 7), "0-3, 7"), ((4999, 5000), "4999-5000")],
)
def test_rank_sets_read_back(ranks, written):
    found = rank_set(ranks)
    assert ranks_of(found) == ranks
    assert written_ranks(found) == written
