"""The header of a trace names the process that writes it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from dsprof.environment import processes
from dsprof.recording import header
from dsprof.recording.header import header_of


def test_slurm_says_the_rank_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("SLURM_PROCID", "9")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    assert header_of(9, 16, backend="gloo", device="cpu", anonymized=False).local_rank == 1


def test_the_namespace_of_the_process_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = header_of(0, 1, backend="gloo", device="cpu", anonymized=False)
    assert made.pid_namespace == int(os.readlink("/proc/self/ns/pid")[len("pid:[") : -1])

    def absent(_: str) -> os.stat_result:
        raise FileNotFoundError

    monkeypatch.setattr(processes, "os", SimpleNamespace(stat=absent))
    made = header_of(0, 1, backend="gloo", device="cpu", anonymized=False)
    assert made.pid_namespace == 0


def test_both_clocks_are_read_at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0
    pauses_ns = iter([30_000, 50_000, 10, 0, 0, 20_000, 10, 40_000] + 10 * [70])

    def reading() -> int:
        nonlocal now_ns
        now_ns += next(pauses_ns)
        return now_ns

    monkeypatch.setattr(header, "clock", reading)
    monkeypatch.setattr(header, "time", SimpleNamespace(time_ns=lambda: 1_000_000 + reading()))
    made = header_of(0, 1, backend="gloo", device="cpu", anonymized=False)
    assert made.started_epoch_ns - made.started_monotonic_ns == 1_000_000
