"""Files that reports do not read, and what to do with them instead."""

from __future__ import annotations

import re

from dsprof.files.inputs import POINTER, POINTER_START
from dsprof.trace.dumps import kernel_log, nccl_ras, py_spy

_NSYS_REPORTS = (".nsys-rep", ".qdrep")
_DEEPSPEED = re.compile(
    r'\A\s*\{[^\0]*"(?:zero_optimization|train_batch_size|train_micro_batch_size_per_gpu)"\s*:'
)

_OF_TORCHRUN = re.compile(r'\A\s*\{"message": ?\{"message": .*"extraInfo": ?\{', re.DOTALL)
_PY_SPY_JSON = re.compile(r'\A\s*\[\s*\{[^\0]*"owns_gil"\s*:')
_MEMORY_PAGE = re.compile(r"\A\s*<[^\0]*/MemoryViz\.js")
_ROCPROF = re.compile(
    r'\A\s*\{"rocprofiler-sdk-tool":|\A"(?:Kind|Domain|Correlation_Id)","'
    r"|\ASQLite format 3\0.*\brocpd_",
    re.DOTALL,
)
_OF_OTHERS = {
    ".ncu-rep": "a report of Nsight Compute",
    ".perfetto-trace": "a trace in Perfetto's own format",
    ".pftrace": "a trace in Perfetto's own format",
}
_PACKED = re.compile(  # bzip2, xz, zstd, LZ4, 7z, tar
    r"\A(?:BZh\d1AY|\ufffd7zXZ\0|\(\ufffd/\ufffd|\x04\"M\x18|7z\ufffd|[^\ufffd]{257}ustar)",
    re.DOTALL,
)
_OF_KERNEL = re.compile(
    r"\d\d:\d\d:\d\d\S{0,16} \S{1,253} kernel:[ \[]|^(?:<\d+>)?\[ *\d+\.\d{6}\] ", re.MULTILINE
)
_TRACEBACK = "Traceback (most recent call last):"


def what_to_do(start: str, suffix: str) -> str:
    """Say what a file is that begins with `start`, and what to do with it; "" if unknown."""
    if nccl_ras.START.search(start):
        return "output of ncclras; give it to `dsprof hang`"
    if start.startswith(py_spy.START) and py_spy.main_stacks(start):
        return "output of py-spy; give it to `dsprof hang`, with the traces of the run"
    if _PY_SPY_JSON.search(start):
        return "JSON of py-spy; run it without --json, and give its output to `dsprof hang`"
    if _OF_TORCHRUN.search(start):
        return "the traceback of a rank of torchrun; give the log of torchrun, which names the rank"
    if _DEEPSPEED.search(start):
        return "a configuration of DeepSpeed; give it to `dsprof lint`"
    if start.startswith(POINTER_START.decode()):
        return POINTER
    if _MEMORY_PAGE.search(start):
        return "a page of torch's memory viewer; give the snapshot (.pickle) that it shows"
    of_other = "output of rocprofv3" if _ROCPROF.search(start) else _OF_OTHERS.get(suffix)
    if of_other:
        return f"{of_other}, which is not read; record with torch.profiler or DSPROF=1"
    if _PACKED.search(start):
        return (
            "compressed or packed; unpack it: dsprof reads files that are plain, gzip or in a zip"
        )
    if suffix in _NSYS_REPORTS:
        return "a report of Nsight Systems; run `nsys export --type sqlite`, and give its output"
    if _OF_KERNEL.search(start) or kernel_log.messages(start):
        return "a log of a kernel; give it to `dsprof hang`, with the traces of the run"
    if _TRACEBACK in start and start[0] not in "[{":
        return (
            "a traceback without a rank; give the whole log of the job, with what torchrun, "
            "DeepSpeed's launcher or srun wrote"
        )
    return ""
