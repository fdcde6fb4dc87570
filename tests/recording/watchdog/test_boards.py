import os
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from dsprof.recording.watchdog.boards import LARGEST_BYTES, FileBoard, StoreBoard


@pytest.fixture(params=["files", "store"])
def make(request, tmp_path):
    """Return another process's view of the same board."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=1))
    made = []

    def board():
        is_file = request.param == "files"
        one = FileBoard(tmp_path, "run-", ".state") if is_file else StoreBoard(lambda: store, "run")
        made.append(one)
        return one

    yield board
    for one in made:
        if isinstance(one, FileBoard):
            one.close()
    assert [*tmp_path.iterdir()] == []


def test_each_question_is_another_one(make):
    here, there = make(), make()
    assert there.question() == ""
    here.ask()
    first = there.question()
    assert first == here.question() != ""
    here.ask()
    assert there.question() not in ("", first)


def test_all_read_what_each_said_last(make):
    here, there = make(), make()
    assert dict(there.read()) == {}
    here.post("3", b"first")
    here.post("3", b"last")
    there.post("7", b"other")
    assert dict(here.read()) == {"3": b"last", "7": b"other"}
    assert there.read_one("3") == b"last"
    assert there.read_one("4") == b""


def test_more_than_bears_reading_is_not_said(make):
    here = make()
    here.post("3", bytes(LARGEST_BYTES + 1))
    assert dict(here.read()) == {}


def test_links_and_what_is_no_file_are_not_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"private")
    os.symlink(secret, tmp_path / "run-told-1.state")
    os.mkfifo(tmp_path / "run-told-2.state")
    assert dict(FileBoard(tmp_path, "run-", ".state").read()) == {}
