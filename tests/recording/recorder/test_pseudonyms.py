"""dsprof.recording.recorder.pseudonyms: pseudonyms that hide and still tell things apart."""

from __future__ import annotations

import msgspec
import pytest

from dsprof.environment import EnvSnapshot
from dsprof.recording.recorder.pseudonyms import Anonymizer, anonymized
from tests.factories.secrets import names


@pytest.fixture
def anonymizer(monkeypatch) -> Anonymizer:
    monkeypatch.setenv("HOME", "/home/alice")
    return Anonymizer("run", {"USER": "alice", "MASTER_ADDR": "node17"})


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/alice/secret/train.py", "~/…/train.py"),
        ("/scratch/proj/train.py", "/…/train.py"),
        ("~/secret/train.py", "~/…/train.py"),
        ("train.py", "train.py"),
        ("/tmp", "/tmp"),
    ],
)
def test_paths_keep_their_last_part(anonymizer, path, shown):
    assert anonymizer.path(path) == shown


def test_hosts_are_told_apart_and_equal_on_all_ranks(anonymizer):
    elsewhere = Anonymizer("run", {})
    assert anonymizer.host("node17") == elsewhere.host("node17") != anonymizer.host("node18")
    assert anonymizer.host("localhost") == "localhost"


def test_another_salt_gives_other_pseudonyms(anonymizer):
    assert Anonymizer("other", {}).host("node17") != anonymizer.host("node17")


def test_text_loses_hosts_users_addresses_and_paths(anonymizer):
    text = "alice at tcp://node17:29500 (10.1.2.3): no room in /home/alice/out/trace.json: full"
    shown = anonymizer.text(text)
    for secret in ("alice", "node17", "10.1.2.3", "/out/"):
        assert secret not in shown
    assert shown.endswith("no room in ~/…/trace.json: full")


def test_versions_and_words_stay(anonymizer):
    assert anonymizer.text("torch 2.13.0, malice/palace 0.5") == "torch 2.13.0, malice/palace 0.5"


def test_snapshot_loses_everything_that_names_a_place(anonymizer):
    snapshot = EnvSnapshot(
        variables={
            "MASTER_ADDR": "node17",
            "SLURM_JOB_NODELIST": "node[17-18]",
            "LD_LIBRARY_PATH": "/home/alice/lib:/opt/acme/lib64",
            "NCCL_ALGO": "Ring",
        },
        files={"/home/alice/.nccl.conf": {"NCCL_TOPO_FILE": "/opt/acme/topo.xml"}},
        libraries=["/opt/acme/nccl/lib/libnccl.so.2"],
    )
    shown = anonymized(snapshot, anonymizer)
    encoded = msgspec.json.encode(shown)
    for secret in (b"node", b"alice", b"acme"):
        assert secret not in encoded
    assert shown.variables["NCCL_ALGO"] == "Ring"
    assert shown.variables.keys() == snapshot.variables.keys()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("nas:/export", ["nas"]),
        ("mount nas:/export/projects/secret on /mnt", ["nas", "export", "projects"]),
        ("nas01-mgmt:/vol/team-x/run7/ckpt.pt", ["nas01", "team-x"]),
        ("rsync -a nas:~/team-x/out .", ["nas", "team-x"]),
        ("hdfs://namenode/user/alice", ["namenode", "alice"]),
        ("hdfs://namenode:8020/user/bob/run/ckpt.pt: not found", ["namenode", "bob", "run"]),
        ("s3://bucket/team-x/run7/ckpt.pt", ["bucket", "team-x", "run7"]),
        ("https://git.example/team-x/repo/blob/main/train.py", ["team-x", "repo"]),
        ("no room in /home/bob", ["bob"]),
        ("no room in /Users/bob", ["bob"]),
    ],
)
def test_mounts_and_urls_lose_hosts_and_folders(anonymizer, text, names):
    shown = anonymizer.text(text)
    assert not [name for name in names if name in shown]


@pytest.mark.parametrize(
    "text",
    [
        *("no such file:/tmp", "std::vector", "rank:0", "a:/b", "1:/2"),
        *("at 12:30:45.123", "0:00:01", "a::b", "Ring[0]", "at::native::add"),
    ],
)
def test_what_is_no_mount_or_address_stays(anonymizer, text):
    assert anonymizer.text(text) == text


@pytest.mark.parametrize("one", names(), ids=lambda one: one.kind)
def test_names_of_each_kind_are_replaced(one):
    known = Anonymizer("run", {"USER": "alicesmith", "HOSTNAME": "secrethost17"})
    assert one.secret not in known.text(one.text)
