from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dsprof.trace.source import Source

DATA = bytes(range(256)) * 500


@pytest.mark.parametrize("written", [DATA, gzip.compress(DATA)])
@pytest.mark.parametrize("size", [1, 1000, 70_000, 200_000])
def test_the_end_of_a_file_packed_or_not(tmp_path: Path, written: bytes, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(written)
    with Source(path) as source:
        assert source.end(size) == DATA[-size:]
