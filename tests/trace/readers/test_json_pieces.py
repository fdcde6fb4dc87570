"""Streams of JSON objects are cut apart in time that grows as the stream does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsprof.trace.readers.json_pieces import BETWEEN_OBJECTS, Pieces
from dsprof.trace.source import Source

SIZE_BYTES = 1 << 25


class CountingSeam:
    """The seam between two objects; counts the bytes that were searched for it."""

    searched_bytes = 0

    def split(self, data: bytes) -> list[Any]:
        self.searched_bytes += len(data)
        return BETWEEN_OBJECTS.split(data)


def test_a_stream_without_a_seam_is_not_searched_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "zeros.json"
    path.write_bytes(bytes(SIZE_BYTES))
    seam: Any = CountingSeam()
    with Source(path) as source:
        list(Pieces(source, str(path), seam))
    assert SIZE_BYTES <= seam.searched_bytes < 3 * SIZE_BYTES


def test_pieces_do_not_depend_on_where_blocks_end(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    lines = [b'{"a": "%s"}' % (b"x" * length) for length in (1, 5 << 20, 2, 3 << 20, 3)]
    path.write_bytes(b"\n".join(lines))
    with Source(path) as source:
        assert list(Pieces(source, str(path), BETWEEN_OBJECTS)) == lines
