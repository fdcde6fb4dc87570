"""Tests on a real GPU: passed over, with the reason, where there is none."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _gpu(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no GPU that this torch can use")
