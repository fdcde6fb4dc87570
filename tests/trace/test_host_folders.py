"""Runs of very many ranks have a folder for each host, which all commands find."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsprof.files import inputs
from dsprof.trace.host_folders import MANY_RANKS, folder_of, shared_folder, traces_in
from dsprof.trace.rolling.parts import part_of
from dsprof.trace.run import find_run, read_run
from dsprof.trace.schema import Header
from tests.factories.month import FastMotion


def header(world_size: int, host: str = "node1") -> Header:
    return Header(1, "run", 0, world_size, host, 1, 0, 0)


def test_ranks_of_large_runs_write_to_folders_of_their_hosts(tmp_path: Path) -> None:
    assert folder_of(header(MANY_RANKS - 1), tmp_path) == tmp_path
    assert folder_of(header(MANY_RANKS), tmp_path) == tmp_path / "hosts" / "node1"


@pytest.mark.parametrize("host", ["..", "../../etc", "/", "", "a\nb"])
def test_no_name_of_a_host_leads_elsewhere(tmp_path: Path, host: str) -> None:
    assert folder_of(header(MANY_RANKS, host), tmp_path).parent == tmp_path / "hosts"
    assert folder_of(header(MANY_RANKS, host), tmp_path).resolve() != tmp_path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    for rank in range(2):
        folder = folder_of(header(MANY_RANKS, f"node{rank}"), out)
        one = FastMotion(folder, 2_000_000, rank, MANY_RANKS)
        with one.running():
            one.train(600)
    return out


def test_a_run_is_found_by_its_folder_with_all_its_parts(run: Path) -> None:
    found = find_run([run])
    assert [path.relative_to(run).as_posix() for path in found.files] == [
        f"hosts/node{rank}/trace.rank0000{rank}.json" for rank in range(2)
    ]
    assert not found.strangers
    for trace in read_run(found):  # sums over 10 s are in a part
        assert sum(one.steps for one in trace.rollups.values() if one.length_s == 10) == 600
    assert sorted(traces_in(run)) == [*found.files]


def test_dumps_are_in_the_folder_of_the_run(run: Path) -> None:
    assert {shared_folder(path) for path in find_run([run]).files} == {run}
    assert shared_folder(run / "trace.rank00000.json") == run


def test_a_host_whose_folder_cannot_be_read_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = inputs.entries

    def refusing(folder: Path) -> list[Path]:
        if folder.name == "node1":
            raise PermissionError(13, "Permission denied")
        return entries(folder)

    monkeypatch.setattr(inputs, "entries", refusing)
    found = find_run([run])
    assert [header.rank for header in found.headers] == [0]
    [missing] = found.strangers
    assert missing.path == run / "hosts" / "node1"
    assert missing.reason == "the folder cannot be read: Permission denied"


def test_a_folder_that_another_user_links_is_not_read(run: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a link away")
    one = FastMotion(tmp_path, 2_000_000)
    with one.running():
        one.train(100)
    (tmp_path / "hosts").symlink_to(run / "hosts")
    assert len(find_run([tmp_path]).files) > 1 or find_run([tmp_path]).strangers
    os.chown(tmp_path / "hosts", 12345, -1, follow_symlinks=False)
    assert [path.parent for path in find_run([tmp_path]).files] == [tmp_path]


def test_each_rank_has_its_parts_beside_it(run: Path) -> None:
    for path in find_run([run]).files:
        assert part_of(path, ".tail0").exists()
        assert len(list(path.parent.iterdir())) <= 8
