"""Equal values of ranks are one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dsprof.trace.reader import read_header
from dsprof.trace.sharing import shared
from tests.factories.trace import header
from tests.factories.trace_files import write_trace


def test_equal_values_are_one_object() -> None:
    one, other = (np.arange(10) for _ in range(2))
    assert shared(one) is shared(other)
    assert shared(one).tolist() == one.tolist()
    assert shared({"a": [1]}) is shared({"a": [1]})
    assert shared(one) is not shared(one.astype(np.int32))


def test_large_columns_stay_as_they_are() -> None:
    large = np.arange(10_000)
    assert shared(large) is large


def test_headers_share_each_key_of_a_job_that_ranks_have_in_common(tmp_path: Path) -> None:
    keys = [["torchrun a", f"process {rank}"] for rank in range(2)]
    heads = [header(rank, job_keys=keys[rank]) for rank in range(2)]
    one, other = (read_header(write_trace(tmp_path / "trace.json", head)) for head in heads)
    assert [one.job_keys, other.job_keys] == keys
    assert one.job_keys[0] is other.job_keys[0]
