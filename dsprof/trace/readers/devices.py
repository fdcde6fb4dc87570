"""The device of a process that is judged, where it used several."""

from __future__ import annotations

import numpy as np

from dsprof.trace.columns import IntArray


def busiest(device: IntArray, took_ns: IntArray) -> tuple[int, list[str]]:
    """Return the device whose work took longest, and a note on what is left out of the others.

    A number below 0 is that of a device known by its name, and is not shown.
    """
    used, of_row = np.unique(device, return_inverse=True)
    if not len(used):
        return 0, []
    main = int(used[int(np.argmax(np.bincount(of_row, took_ns)))])
    if len(used) == 1:
        return main, []
    which = f"device {main}" if main >= 0 else "the busiest"
    left = int(np.count_nonzero(device != main))
    return main, [
        f"a process used {len(used)} devices: {which} is judged, kernels and copies of the others "
        f"are left out ({left:,})"
    ]
