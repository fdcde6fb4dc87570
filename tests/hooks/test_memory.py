from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dsprof.hooks.memory import DEVICE_TOTAL, device_counters


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(
        is_initialized=lambda: True,
        memory_stats=lambda: {"num_ooms": 3, "of no interest": 1},
        current_device=lambda: 2,
        get_device_properties=lambda device: SimpleNamespace(total_memory=device * 10**10),
    )
    monkeypatch.setattr(torch, "cuda", made)
    return made


def test_counters_come_with_the_size_of_the_current_device(cuda: SimpleNamespace) -> None:
    assert device_counters() == {"num_ooms": 3, DEVICE_TOTAL: 2 * 10**10}


def test_nothing_is_read_before_cuda_is_in_use(cuda: SimpleNamespace) -> None:
    cuda.is_initialized = lambda: False
    assert device_counters() is None
