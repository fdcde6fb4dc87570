"""Notes between processes are whole, whoever writes at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsprof.files import notes


def test_writers_with_one_process_number_do_not_mix_what_they_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In containers, ranks of several hosts have the same one."""
    link, path = os.link, tmp_path / "note"

    def link_late(part: Path, to: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        assert notes.put(path, b"of another", is_first=True)
        link(part, to)

    monkeypatch.setattr(os, "link", link_late)
    assert not notes.put(path, b"mine", is_first=True)
    assert notes.read(path, 100) == b"of another"
    assert [one.name for one in tmp_path.iterdir()] == ["note"]
