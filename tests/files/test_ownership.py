"""Who could have put a file where it is."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from dsprof.files.ownership import foreign_link, why_untrusted
from tests.factories.hostile import owned_by_another

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o755)
    path = folder / "library.so"
    path.write_bytes(b"")
    path.chmod(0o755)
    return path


def test_a_file_of_our_own_is_trusted(library: Path) -> None:
    assert why_untrusted(library) == ""


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_what_all_can_write_is_not(library: Path, mode: int) -> None:
    library.parent.chmod(mode)
    assert why_untrusted(library) == f"{library.parent} can be written by other users"


def test_a_folder_in_which_each_keeps_his_own_is_trusted(library: Path) -> None:
    library.parent.chmod(0o1777)  # as /tmp
    assert why_untrusted(library) == ""
    library.chmod(0o666)
    assert why_untrusted(library) == f"{library} can be written by other users"


@as_root
def test_the_group_of_the_user_alone_may_write(library: Path) -> None:
    me = pwd.getpwuid(os.geteuid())
    os.chown(library, -1, me.pw_gid)
    library.chmod(0o775)
    assert why_untrusted(library) == ""
    os.chown(library, -1, 12345)
    assert why_untrusted(library) == f"{library} can be written by other users"


@as_root
@pytest.mark.parametrize("of_folder", [False, True])
def test_what_another_user_owns_is_not_trusted(library: Path, of_folder: bool) -> None:
    planted = library.parent if of_folder else library
    owned_by_another(planted)
    assert why_untrusted(library) == f"{planted} belongs to another user"


@as_root
def test_the_link_that_another_user_owns_is_found_behind_our_own(library: Path) -> None:
    theirs, ours = library.parent / "theirs", library.parent / "ours"
    theirs.symlink_to(library)
    ours.symlink_to("theirs")
    assert foreign_link(ours) is None
    owned_by_another(theirs)
    assert foreign_link(ours) == theirs
    assert foreign_link(library) is None


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    assert foreign_link(circle) is None
