from pathlib import Path

import pytest

from dsprof.trace.readers.base import rank_in_name


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.pkl", 3),
        ("nccl_trace_rank_3", 3),
        ("Rank-12.pt.trace.json", 12),
        ("rank1048575.json", 1048575),
        ("rank1048576.json", -1),  # an id: no run has so many ranks
        ("rank12345678.json", -1),
        ("trace.json", -1),
    ],
)
def test_a_rank_stands_behind_the_word(name: str, rank: int) -> None:
    assert rank_in_name(Path("rank7") / name) == rank
