"""Each reader against damage of every kind: traces or one TraceError of one line, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzzing.formats import FORMATS, read
from tests.fuzzing.mutators import damaged

INPUTS = 330
each = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.rank00001.json"


@each
def test_the_whole_file_is_read(path: Path, name: str) -> None:
    one = FORMATS[name]()
    for data in (one.whole, *([one.encode(one.document)] if one.document else [])):
        assert read(one, path, data)


@each
def test_odd_files(path: Path, name: str) -> None:
    one = FORMATS[name]()
    for data in (b"", *one.odd, *one.starts):
        read(one, path, data)


@each
@pytest.mark.parametrize("part", range(3))
def test_damaged_files(path: Path, name: str, part: int) -> None:
    for number in range(part, INPUTS, 3):
        try:
            read(FORMATS[name](), path, damaged(FORMATS[name](), number))
        except Exception as error:
            raise AssertionError(f"python -m tests.fuzzing {name} --first {number}") from error
