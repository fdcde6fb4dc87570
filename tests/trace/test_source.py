from __future__ import annotations

import gzip
import importlib
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dsprof.trace import source
from dsprof.trace.source import Source

DATA = bytes(range(256)) * 500


@pytest.mark.parametrize("written", [DATA, gzip.compress(DATA)])
@pytest.mark.parametrize("size", [1, 1000, 70_000, 200_000])
def test_the_end_of_a_file_packed_or_not(tmp_path: Path, written: bytes, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(written)
    with Source(path) as source:
        assert source.end(size) == DATA[-size:]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-8"])
@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_text_that_windows_wrote_is_read_as_utf_8(tmp_path: Path, encoding: str, size: int) -> None:
    text = "Größe 4 KiB, ∞ 𝄞\r\n" * 3000
    path = tmp_path / "train.log"
    path.write_bytes(f"\ufeff{text}".encode(encoding))
    with Source(path) as source:
        assert not source.is_plain
        read = b"".join(iter(lambda: source.read(size), b""))
    assert read.decode() == text


def test_half_a_character_at_the_end_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes("NCCL WARN".encode("utf-16") + b"\x00")
    with Source(path) as source:
        assert source.read(100).decode() == "NCCL WARN\ufffd"


@pytest.fixture(params=[True, False], ids=["isal", "zlib"])
def unpacker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Either library that unpacks: of isal there is no build for some machines."""
    if request.param:
        pytest.importorskip("isal")
    else:
        monkeypatch.setitem(sys.modules, "isal", None)
        importlib.reload(source)
    yield
    monkeypatch.undo()
    importlib.reload(source)


@pytest.mark.usefixtures("unpacker")
@pytest.mark.parametrize("damage", ["none", "cut", "flipped", "checksum", "trailing garbage"])
def test_a_packed_file_ends_at_its_damage(tmp_path: Path, damage: str) -> None:
    packed = bytearray(gzip.compress(DATA, 1) + gzip.compress(DATA, 1))
    match damage:
        case "cut":
            del packed[-300:]
        case "flipped":
            packed[len(packed) // 4] ^= 0xFF
        case "checksum":
            packed[-8] ^= 0xFF
        case "trailing garbage":
            packed += b"garbage"
    path = tmp_path / "file"
    path.write_bytes(packed)
    with source.Source(path) as opened:
        read = b"".join(iter(lambda: opened.read(1000), b""))
    assert read == _unpacked(bytes(packed))
    assert (read == DATA + DATA) == (damage in ("none", "checksum", "trailing garbage"))


def _unpacked(packed: bytes) -> bytes:
    """Return all that zlib unpacks, byte by byte, before it meets damage."""
    found = b""
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file, suppress(OSError, EOFError, zlib.error):
        while byte := file.read(1):
            found += byte
    return found
