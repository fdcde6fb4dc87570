"""dsprof.recording.recorder.shared_key: digests that only the ranks of one run can compare."""

from __future__ import annotations

import re

import pytest
import torch.distributed as dist

from dsprof.recording.recorder.shared_key import SharedKey


class Group:
    """Stands for torch.distributed, whose default group has this store."""

    PrefixStore, TCPStore, HashStore = dist.PrefixStore, dist.TCPStore, dist.HashStore

    def __init__(self, store):
        self.distributed_c10d = self
        self._get_default_store = lambda: store


def key_of(store):
    key = SharedKey()
    key.agree(Group(store))
    if key._thread is not None:
        key._thread.join()
    return key


def tcp_stores():
    server = dist.TCPStore("127.0.0.1", 0, None, True)
    return server, dist.TCPStore("127.0.0.1", server.port, None, False)


def hash_stores():
    store = dist.HashStore()
    return store, store


def prefixed_stores():
    return [dist.PrefixStore("attempt_0", dist.PrefixStore("pg", one)) for one in tcp_stores()]


@pytest.mark.parametrize("stores", [tcp_stores, hash_stores, prefixed_stores])
def test_ranks_of_one_store_make_the_same_digests(stores):
    one, other = map(key_of, stores())
    assert one.digest("A", "hunter2") == other.digest("A", "hunter2") != ""
    assert one.digest("A", "hunter2") != other.digest("A", "hunter3")
    assert one.digest("A", "hunter2") != other.digest("B", "hunter2")
    assert re.fullmatch("[0-9a-f]{8}-[0-9a-f]{16}", one.digest("A", "hunter2"))


def test_another_run_has_another_key_and_tells_so():
    one, other = (key_of(dist.HashStore()).digest("A", "hunter2") for _ in range(2))
    assert one.partition("-")[0] != other.partition("-")[0]
    assert one.partition("-")[2] != other.partition("-")[2]


def test_another_prefix_is_another_key():
    store = dist.HashStore()
    one, other = (key_of(dist.PrefixStore(f"attempt_{n}", store)) for n in range(2))
    assert one.digest("A", "hunter2") != other.digest("A", "hunter2")


def test_a_store_on_disk_gets_no_key(tmp_path):
    path = tmp_path / "store"
    for store in (dist.FileStore(str(path), 1), dist.PrefixStore("a", dist.FileStore(str(path)))):
        store.set("other", "1")
        before = path.read_bytes()
        assert key_of(store).digest("A", "hunter2") == ""
        assert path.read_bytes() == before


class OfSomebody(dist.Store):
    pass


class NoGroup:
    """A torch.distributed of another release."""


@pytest.mark.parametrize("dist_", [Group(OfSomebody()), Group(None), NoGroup()])
def test_what_is_no_known_store_gives_no_digest(dist_):
    key = SharedKey()
    key.agree(dist_)
    key.wait()
    assert key.digest("A", "hunter2") == ""


def test_a_store_that_is_gone_gives_no_digest():
    server, client = tcp_stores()
    del server
    assert key_of(client).digest("A", "hunter2") == ""


def test_a_key_that_somebody_else_wrote_is_no_key():
    store = dist.HashStore()
    for planted in ("", "hunter2", "00ff", "zz" * 32):
        store.set("dsprof/key", planted)
        assert key_of(store).digest("A", "x") == "" or planted == ""


def test_the_text_of_an_object_is_not_compared():
    assert key_of(dist.HashStore()).digest("A", "<function f at 0x7f0011223344>") == ""
