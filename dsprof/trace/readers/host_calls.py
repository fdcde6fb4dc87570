"""What calls of the host do, by their names: runtimes of CUDA and ROCm, torch's own ranges."""

from __future__ import annotations

import re

from dsprof.trace.device import (
    ALLOCATION,
    DATA_LOADER,
    LAUNCH,
    LOADING,
    SYNCHRONISATION,
    TRANSFER,
)

_RUNTIME = (
    (SYNCHRONISATION, r"(cuda|hip|cu)(Device|Stream|Event|Ctx|Thread|Context)Synchronize"),
    (TRANSFER, r"(cuda|hip|cu)Memcpy"),
    (
        ALLOCATION,
        r"(cuda|hip)(Ext)?(Malloc|Free|Host(Alloc|Malloc|Free|Register|Unregister))"
        r"|(cu|hip)Mem(Alloc|Free|Create|Release|Map|Unmap|SetAccess|Address|Host)",
    ),
    (
        LOADING,
        r"(cuda|hip|cu)(Graph(Instantiate|ExecUpdate|ExecDestroy|Destroy|Upload)|StreamEndCapture)"
        r"|(cuda|hip|cu)(Module|Library|Link)(Load|Unload|Create|AddData|Complete)"
        r"|(cu|cuda|hip)FuncLoad|(nvrtc|hiprtc)Compile"
        r"|(cuda|hip)FuncGetAttributes|(cuda|hip|cu)(Init|DevicePrimaryCtxRetain|CtxCreate)"
        r"|(cuda|hip)(DeviceGetStreamPriorityRange|StreamCreate)",
    ),
    (LAUNCH, r"(cuda|hip|cu)\w*Launch|(cuda|hip|cu)Memset"),
)
_RANGES = (
    (
        LOADING,
        r".*\(dynamo_timed\)$|torch/_dynamo/convert_frame\.py\(\d+\): _compile"
        r"|.*torch/_inductor/(compile_fx\.py\(\d+\): (_?compile_fx|fx_codegen)|async_compile\.py)"
        r"|.*triton/compiler/compiler\.py\(\d+\): compile|.*torch/utils/cpp_extension\.py",
    ),
    (
        DATA_LOADER,
        r"enumerate\(DataLoader\)#|.*/data_?loader\.py\(\d+\): (__next__|_next_data|_get_data)"
        r"|.*dataloader(\.__next__|_next)$|(get|fetch|load|next)_?batch\b",
    ),
)
_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds)+$")
_IS_RUNTIME = re.compile(r"(cuda|hip|cu|nvrtc|hiprtc)[A-Z]")


def kind_of(name: str) -> int:
    """Return what a call of this name does, 0 if it is of no kind that is read."""
    table = _RUNTIME if _IS_RUNTIME.match(name) else _RANGES
    return next((kind for kind, pattern in table if re.match(pattern, name, re.I)), 0)


def bare(name: str) -> str:
    """Return the name of a runtime call without the version that Nsight Systems puts behind."""
    return _VERSION.sub("", name)
