"""The store of the default group: where it is, and what asks it without being held up."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from dsprof.recording import group_store


def test_an_answer_that_does_not_come_in_time_is_waited_for_no_longer(monkeypatch):
    monkeypatch.setattr(group_store, "PATIENCE_S", 0.01)
    held = threading.Event()

    assert group_store.within(lambda: held.wait(30), print) is None
    held.set()


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("socket timeout"), ValueError()])
def test_a_place_that_fails_gives_no_answer(error):
    failures = []

    assert group_store.within(lambda: throw(error), failures.append) is None
    assert not failures


def test_the_address_of_a_store_is_known_where_it_has_one(tmp_path, monkeypatch):
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    file = dist.FileStore(str(tmp_path / "store"), 1)
    client = dist.TCPStore("localhost", server.port, is_master=False)
    stores = [server, dist.PrefixStore("0", client), file, dist.HashStore()]
    found = []
    for store in stores:
        monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda store=store: store)
        found.append(group_store.store_address())
    assert found == [str(server.port), str(server.port), str(tmp_path / "store"), ""]


def test_without_a_group_no_store_has_an_address():
    assert group_store.store_address() == ""


def throw(error):
    raise error
