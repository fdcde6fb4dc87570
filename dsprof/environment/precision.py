"""Which dtypes this process multiplies fast, and how it multiplies fp32.

torch is asked where it is loaded. Without it, as in `dsprof lint`, the CPU's instructions tell what
torch would say. Nothing initialises a device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dsprof.environment import machine
from dsprof.environment.machine import ROOT, attempt

_CONVERTS = frozenset(("avx512bw", "avx512vl", "avx512dq"))
"""Instructions that oneDNN needs to convert bf16 to fp32 within a product."""
_INSTRUCTIONS = ("avx2", "avx512bw", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")
_WIDE = ("AVX512", "AVX10", "ALL", "DEFAULT")
"""How values of ONEDNN_MAX_CPU_ISA begin that do not take bf16 products away."""


def facts(environ: Mapping[str, str], root: Path = ROOT) -> dict[str, str]:
    """Return what is known; what is not is absent.

    `cpu_bf16` and `cpu_fp16` say whether oneDNN multiplies that dtype ("yes" or "no": torch's
    reference path does), `cpu_capability` is torch's, `cpu_instructions` the processor's,
    `fp32_products` is "ieee" or "tf32" on CUDA devices, `capability` that of the first device.
    """
    torch: Any = sys.modules.get("torch")
    flags = attempt(machine.cpu_flags, frozenset[str](), root)
    probes: dict[str, Callable[[], str]] = {
        "cpu_instructions": lambda: " ".join(name for name in _INSTRUCTIONS if name in flags),
        "cpu_capability": lambda: str(torch.backends.cpu.get_cpu_capability()),
        "cpu_bf16": lambda: _multiplies(torch, "bf16", environ, flags),
        "cpu_fp16": lambda: _multiplies(torch, "fp16", environ, flags),
        "fp32_products": lambda: _fp32_products(torch),
        "capability": lambda: _capability(torch),
    }
    found = {name: attempt(probe, "") for name, probe in probes.items()}
    return {name: value for name, value in found.items() if value}


def _multiplies(torch: Any, dtype: str, environ: Mapping[str, str], flags: frozenset[str]) -> str:
    if torch is not None:
        supported = getattr(torch.ops.mkldnn, f"_is_mkldnn_{dtype}_supported")()
    elif "avx2" in flags:
        needed = _CONVERTS if dtype == "bf16" else {"avx512_fp16"}
        limit = environ.get("ONEDNN_MAX_CPU_ISA", environ.get("DNNL_MAX_CPU_ISA", "ALL")).upper()
        supported = flags >= needed and limit.startswith(_WIDE)
    else:
        return ""  # another architecture, or the CPU is unknown
    return "yes" if supported else "no"


def _fp32_products(torch: Any) -> str:
    try:
        allowed = torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # torch 2.9 and later, where the program uses `fp32_precision`
        allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if allowed else "ieee"


def _capability(torch: Any) -> str:
    """Return the compute capability of the current device: "9.0"; asking earlier initialises it."""
    if torch.version.hip or not torch.cuda.is_initialized():
        return ""
    return ".".join(map(str, torch.cuda.get_device_capability()))
