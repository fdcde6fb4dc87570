"""The header of a trace names the process that writes it."""

from __future__ import annotations

import pytest

from dsprof.recording.header import header_of


def test_slurm_says_the_rank_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("SLURM_PROCID", "9")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    assert header_of(9, 16, backend="gloo", device="cpu", anonymized=False).local_rank == 1
