"""From the work of one process in an nsys export to the columns that every reader gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dsprof.trace.device_activity import COMMUNICATION, COMPUTE, COPY, DeviceActivity
from dsprof.trace.readers.call_rows import UNNAMED, Call, GroupTable
from dsprof.trace.readers.kernels import is_usual, library_of, operation_of
from dsprof.trace.readers.nsys.device_work import COPY as COPY_WORK
from dsprof.trace.readers.nsys.device_work import KERNEL, Work
from dsprof.trace.readers.nsys.nccl import Issue, Kernel
from dsprof.trace.readers.nsys.processes import Process

_UNKNOWN = Issue("", 0, "", 0)
_GROUPED = "send_recv"
"""The kernel of sends and receives, by which NCCL also runs an all-to-all."""


def activity(work: Work, origin_ns: int) -> DeviceActivity:
    """Sort the work of one process into computation, communication and copies."""
    words = list(work.words)
    libraries = [library_of(word) for word in work.words]
    codes = {library: len(words) + i for i, library in enumerate(dict.fromkeys(libraries))}
    library = np.array([codes[one] for one in libraries], np.int64)
    usual = np.array([is_usual(word) for word in work.words], np.bool_)
    communicates = np.array([bool(one) for one in libraries], np.bool_)
    is_kernel = work.kind == KERNEL
    kind = np.where(is_kernel & communicates[work.name], COMMUNICATION, COMPUTE)
    kind[work.kind == COPY_WORK] = COPY
    return DeviceActivity(
        words=[*words, *codes],
        name=work.name,
        library=library[work.name],
        kind=kind.astype(np.int64),
        stream=work.stream,
        start_ns=work.start_ns - origin_ns,
        end_ns=work.end_ns - origin_ns,
        is_usual=(kind == COMMUNICATION) & usual[work.name],
        elsewhere=work.elsewhere - origin_ns,
    )


def calls(
    device: DeviceActivity, groups: GroupTable, process: Process, issues: Mapping[Kernel, Issue]
) -> Iterator[Call]:
    """Yield the communication kernels as collectives; NCCL's calls give sizes and groups."""
    rows = np.flatnonzero(device.kind == COMMUNICATION)
    order = rows[np.argsort(device.start_ns[rows], kind="stable")]
    ops = {code: operation_of(device.words[code]) for code in np.unique(device.name[rows]).tolist()}
    for row in order.tolist():
        op, stream = ops[int(device.name[row])], int(device.stream[row])
        start_ns = int(device.start_ns[row])
        issue = issues.get((process.id, stream, start_ns + process.start_ns), _UNKNOWN)
        if op not in ("", _GROUPED, issue.op):
            issue = _UNKNOWN
        key = issue.communicator
        yield Call(
            op=issue.op or op or UNNAMED,
            group=groups.number(key, f"communicator {key}" if key else "unknown", [], issue.ranks),
            elements=0,
            nbytes=issue.nbytes,
            dtype="",
            lane=stream,
            start_ns=start_ns,
            end_ns=int(device.end_ns[row]),
        )
