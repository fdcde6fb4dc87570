"""Matrix products by precision, on a rank of its own."""

from __future__ import annotations

import pytest
import torch

from dsprof.bench import products as module
from dsprof.bench.products import measure_products

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "_WIDTHS", {"cpu": 16})


def two_ranks(monkeypatch, other):
    monkeypatch.setattr(module, "told", lambda value, group, size: [value, other(value)])


def test_each_precision_has_the_time_of_the_slowest_rank(small, monkeypatch):
    two_ranks(monkeypatch, lambda ns: ns + 1e9)
    found = measure_products(CPU, None, 2)
    assert [product.precision for product in found] == ["fp32", "bf16", "fp16"]
    assert all(product.width == 16 and product.time_ns > 1e9 for product in found)
    assert found[0].flops_per_s == pytest.approx(2 * 16**3 / found[0].time_ns * 1e9)


def test_what_a_rank_refuses_is_left_out(small, monkeypatch):
    two_ranks(monkeypatch, lambda ns: ns)
    made = module.square_product

    def product(dtype, width, device):
        if dtype is torch.float16:
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")
        return made(dtype, width, device)

    monkeypatch.setattr(module, "square_product", product)
    assert [one.precision for one in measure_products(CPU, None, 2)] == ["fp32", "bf16"]


def test_the_setting_of_the_process_comes_back(small, monkeypatch):
    two_ranks(monkeypatch, lambda ns: ns)
    torch.set_float32_matmul_precision("medium")
    try:
        measure_products(CPU, None, 2)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
