"""Pickles of plain data, and those that would run something."""

from __future__ import annotations

import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsprof.errors import TraceError
from dsprof.trace.readers.pickles import load_plain
from dsprof.trace.source import Source

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@given(value=plain)
def test_plain_data_comes_back_as_it_was(protocol: int, value: Any) -> None:
    if protocol == 2:
        value = _without_bytes(value)
    assert load_plain(pickle.dumps(value, protocol), "x") == value


def _without_bytes(value: Any) -> Any:
    """In protocol 2 bytes are written as a call of a codec."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {key: _without_bytes(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_without_bytes, value))
    return value


def test_what_stands_in_several_places_is_one_thing() -> None:
    shared = [1, 2]
    first, second = load_plain(pickle.dumps([shared, shared]), "x")
    assert first is second


class Runs:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._path}",)


HOSTILE = {
    "os.system by GLOBAL": b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.",
    "os.system by STACK_GLOBAL": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
    "INST": b"(S'true'\niposix\nsystem\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "NEWOBJ": b"\x80\x02}}\x81.",
    "BUILD": b"\x80\x02}}b.",
    "a persistent id": b"\x80\x02Q.",
    "a huge memo": b"\x80\x02}r\xff\xff\xff\x7f}r\xff\xff\xff\xff" + b"0" * 8,
    "a string longer than the file": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.",
    "a huge bytearray": b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\x00\x00.",
    "a huge number": b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
    "a huge number in text": b"I" + b"9" * 100_000 + b"\n.",
    "a list as a key": b"\x80\x02}]Ns.",
    "a number that collides as a key": b"\x80\x02}\x8a\x09" + b"\xff" * 8 + b"\x00Ns.",
    "an odd number of items": b"\x80\x02}(K\x01K\x02K\x03u.",
    "items for no dict": b"\x80\x02](K\x01K\x02u.",
    "nothing to end with": b"\x80\x02.",
    "nothing at all": b"",
    "no end": b"\x80\x02}",
    "a mark without a mark": b"\x80\x02}u.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(TraceError) as refusal:
        load_plain(HOSTILE[name], "some/file")
    assert str(refusal.value).startswith("some/file: a pickle")
    assert "\n" not in str(refusal.value)


def test_nothing_in_a_file_is_called(tmp_path: Path) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps({"segments": Runs(tmp_path / "touched")}, protocol)
        with pytest.raises(TraceError):
            load_plain(data, "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("op", [b"]", b"}", b"(", b"]q\x00\x85"])
def test_the_number_of_parts_is_bounded(op: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsprof.trace.readers.pickles._MOST_CONTAINERS", 1000)
    assert load_plain(b"\x80\x04" + op * 500 + b"N.", "x") is None
    with pytest.raises(TraceError, match="more than 1,000 parts"):
        load_plain(b"\x80\x04" + op * 1001 + b"N.", "x")


def test_a_memo_takes_no_more_than_what_is_in_it() -> None:
    tracemalloc.start()
    load_plain(b"\x80\x02}" + b"r\xff\xff\xff\x7f" * 1000 + b".", "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsprof.trace.source.LARGEST_WHOLE_BYTES", 2 << 20)
    path = tmp_path / "large"
    path.write_bytes(b"x" * (4 << 20))
    with Source(path) as source, pytest.raises(TraceError, match="larger than 2 MiB"):
        source.read_whole()


@pytest.mark.parametrize("op", [b"\x94", b"q\x00", b"K\x01", b"h\x00", b"]"])
def test_a_small_file_makes_no_more_objects_than_it_may(op: bytes) -> None:
    data = b"\x80\x04]q\x00" + op * 1000 + b"."
    load_plain(data, "x", most_parts=2000)
    with pytest.raises(TraceError, match="too many objects for a file"):
        load_plain(data, "x", most_parts=900)


def test_a_list_in_itself_is_harmless() -> None:
    value = load_plain(b"\x80\x02]q\x00h\x00a.", "x")
    assert value[0] is value


def test_deep_nesting_is_harmless() -> None:
    value = load_plain(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "x")
    assert len(value) == 1
