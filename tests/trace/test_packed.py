"""What is held of a run with many ranks."""

from __future__ import annotations

import gc
from pathlib import Path

from dsprof.trace.packed import packed
from dsprof.trace.run import find_run
from dsprof.trace.schema import Header
from tests.factories.trace import header
from tests.factories.trace_files import write_trace

RANKS = 300


def test_many_values_are_the_same_packed() -> None:
    values = packed(map(str, range(RANKS)))
    assert [*values] == [*map(str, range(RANKS))]
    assert (values[-1], values[70], values[3]) == ("299", "70", "3")


def test_of_a_run_with_many_ranks_few_paths_and_headers_are_objects(tmp_path: Path) -> None:
    for rank in range(RANKS):
        write_trace(tmp_path / f"trace.rank{rank:05d}.json", header(rank, RANKS), steps=0)
    run = find_run([tmp_path])
    assert len(run.files) == len(run.headers) == RANKS
    gc.collect()
    held = [one for one in gc.get_objects() if isinstance(one, (Path, Header))]
    assert sum(isinstance(one, Header) or one.parent == tmp_path for one in held) < RANKS
