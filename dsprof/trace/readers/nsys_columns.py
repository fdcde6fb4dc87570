"""From the work of one process in an nsys export to the columns that every reader gives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dsprof.trace.device import COMMUNICATION, COMPUTE, COPY, DeviceActivity
from dsprof.trace.readers import nsys_work
from dsprof.trace.readers.calls import UNNAMED, Call, GroupTable
from dsprof.trace.readers.kernels import is_usual, library_of, operation_of


def activity(work: nsys_work.Work, origin_ns: int) -> DeviceActivity:
    """Sort the work of one process into computation, communication and copies."""
    words = list(work.words)
    libraries = [library_of(word) for word in work.words]
    codes = {library: len(words) + i for i, library in enumerate(dict.fromkeys(libraries))}
    library = np.array([codes[one] for one in libraries], np.int64)
    usual = np.array([is_usual(word) for word in work.words], np.bool_)
    communicates = np.array([bool(one) for one in libraries], np.bool_)
    is_kernel = work.kind == nsys_work.KERNEL
    kind = np.where(is_kernel & communicates[work.name], COMMUNICATION, COMPUTE)
    kind[work.kind == nsys_work.COPY] = COPY
    return DeviceActivity(
        words=[*words, *codes],
        name=work.name,
        library=library[work.name],
        kind=kind.astype(np.int64),
        stream=work.stream,
        start_ns=work.start_ns - origin_ns,
        end_ns=work.end_ns - origin_ns,
        is_usual=(kind == COMMUNICATION) & usual[work.name],
    )


def calls(device: DeviceActivity, groups: GroupTable) -> Iterator[Call]:
    """Yield the communication kernels as collectives; sizes and groups are not in an export."""
    rows = np.flatnonzero(device.kind == COMMUNICATION)
    order = rows[np.argsort(device.start_ns[rows], kind="stable")]
    ops = {code: operation_of(device.words[code]) for code in np.unique(device.name[rows]).tolist()}
    for row in order.tolist():
        yield Call(
            op=ops[int(device.name[row])] or UNNAMED,
            group=groups.number("", "unknown", [], 0),
            elements=0,
            nbytes=0,
            dtype="",
            lane=int(device.stream[row]),
            start_ns=int(device.start_ns[row]),
            end_ns=int(device.end_ns[row]),
        )
