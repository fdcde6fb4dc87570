import os

import msgspec
import pytest

from dsprof.errors import TraceError
from dsprof.trace.dumps.hang_dump import (
    LARGEST_BYTES,
    HangDump,
    ProcessState,
    ThreadStack,
    read_dump,
    write_dump,
)
from tests.factories.trace import header


def dump():
    return HangDump(
        header=header(rank=3),
        noticed_epoch_ns=5,
        noticed_ns=7,
        reason="rank 3 has waited 61 s in all_reduce 4",
        threads=[ThreadStack("MainThread", ("train.py:3 main",))],
        process=ProcessState(state="S", waits_in="futex_wait", oom_kills=0),
    )


def test_a_dump_is_read_as_it_was_written(tmp_path):
    path = write_dump(tmp_path, dump())

    assert path.name == "hang-rank00003.json"
    assert read_dump(path) == dump()
    assert [*tmp_path.iterdir()] == [path]


def test_no_link_that_another_user_planted_is_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("kept")
    (tmp_path / f".hang-rank00003.json.{os.getpid()}").symlink_to(mine)

    assert read_dump(write_dump(tmp_path, dump())) == dump()
    assert mine.read_text() == "kept"


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[" * 100_000, b"\xff", b"x" * (LARGEST_BYTES + 1), b'{"header": 3}']
)
def test_what_is_no_dump_is_refused(tmp_path, data):
    path = tmp_path / "hang-rank00000.json"
    path.write_bytes(data)

    with pytest.raises(TraceError, match="hang-rank00000"):
        read_dump(path)


def test_a_cut_dump_is_refused(tmp_path):
    path = write_dump(tmp_path, dump())
    path.write_bytes(msgspec.json.encode(dump())[:-20])

    with pytest.raises(TraceError, match="no dump"):
        read_dump(path)


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1, 10**30])
def test_a_dump_with_a_number_that_no_clock_reaches_is_refused(tmp_path, number):
    path = write_dump(tmp_path, dump())
    path.write_bytes(path.read_bytes().replace(b'"noticed_ns": 7', b'"noticed_ns": %d' % number))

    with pytest.raises(TraceError, match="no dump of a hang"):
        read_dump(path)
