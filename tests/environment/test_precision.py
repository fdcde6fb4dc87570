"""What a process multiplies fast, as torch says it and as the CPU tells it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dsprof import environment
from dsprof.environment import precision

AVX512 = "fpu avx2 avx512f avx512bw avx512vl avx512dq"
AVX2_ONLY = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
ASKED = (
    "import json, torch\n"
    "from dsprof.environment import precision\n"
    "print(json.dumps(precision.facts({})))"
)


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def root_with(tmp_path, flags: str):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n\n")
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "environ", "bf16", "fp16"),
    [
        ("fpu avx2", {}, "no", "no"),
        (AVX512, {}, "yes", "no"),
        (f"{AVX512} avx512_bf16 avx512_fp16", {}, "yes", "yes"),
        (AVX512, AVX2_ONLY, "no", "no"),
        (AVX512, {"DNNL_MAX_CPU_ISA": "avx512_core"}, "yes", "no"),
        ("fp asimd", {}, None, None),
    ],
)
def test_without_torch_the_cpu_tells(tmp_path, without_torch, flags, environ, bf16, fp16):
    found = precision.facts(environ, root_with(tmp_path, flags))
    assert (found.get("cpu_bf16"), found.get("cpu_fp16")) == (bf16, fp16)
    assert "fp32_products" not in found


@pytest.mark.parametrize("limits", [{}, AVX2_ONLY])
def test_with_torch_it_agrees_with_what_the_cpu_tells(limits, without_torch):
    environ = {**os.environ, **limits}  # whoever runs the tests may have set limits, too
    done = subprocess.run(
        [sys.executable, "-c", ASKED], env=environ, capture_output=True, text=True, check=True
    )
    by_torch, by_cpu = json.loads(done.stdout), precision.facts(environ)
    assert {name: by_torch[name] for name in by_cpu} == by_cpu
    assert by_torch["fp32_products"] == "ieee"
    if limits and "cpu_bf16" in by_cpu:
        assert (by_torch["cpu_bf16"], by_torch["cpu_capability"]) == ("no", "AVX2")


def test_tf32_is_read_by_either_interface_of_torch(monkeypatch):
    class Mixed:
        fp32_precision = "tf32"

        @property
        def allow_tf32(self):
            raise RuntimeError("mix of the legacy and new APIs")

    for matmul in (SimpleNamespace(allow_tf32=True), Mixed()):
        cuda = SimpleNamespace(matmul=matmul)
        torch = SimpleNamespace(backends=SimpleNamespace(cuda=cuda))
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert precision.facts({})["fp32_products"] == "tf32"


def test_what_the_program_sets_later_is_read_after_the_first_step(monkeypatch):
    monkeypatch.setattr(precision, "facts", lambda environ: {"fp32_products": "ieee"})
    early = environment.snapshot({})
    monkeypatch.setattr(precision, "facts", lambda environ: {"fp32_products": "tf32"})
    late = environment.after_first_step(early)
    assert late is not None
    assert (early.precision, late.precision) == (
        {"fp32_products": "ieee"},
        {"fp32_products": "tf32"},
    )
