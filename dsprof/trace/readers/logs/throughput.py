"""What DeepSpeed's throughput timer prints every few steps."""

from __future__ import annotations

import re

from dsprof.trace.rank_log import Throughput

_MEMORY = r"(?:, MemAllocated=(?P<memory>[\d.]{1,12})GB, MaxMemAllocated=[\d.]{1,12}GB)?"
_RATE = r"(?P<rate>\d[\d.e+-]{0,30})"
_CURRENT = re.compile(
    r"(?:global_step=|\d{1,15}/)(?P<step>\d{1,15}), RunningAvgSamplesPerSec=[\d.e+-]{1,30}, "
    rf"CurrSamplesPerSec={_RATE}{_MEMORY}"
)
_AVERAGE = re.compile(rf"\] 0/(?P<step>\d{{1,15}}), SamplesPerSec={_RATE}{_MEMORY}\s*$")
_UNTIMED = 2  # steps at the start that no release times


class ThroughputTimer:
    """Reads the lines of one process.

    Releases up to 2022 print the average over all steps since the start. Two of them give the rate
    between: samples and time are sums. Of a later epoch they number the steps anew, so only the
    first is read; and of several engines in a process none, for their lines look the same.
    """

    def __init__(self) -> None:
        self._before = (0, 0.0)  # steps so far, and their time in times of a step of 1 sample/s
        self._is_of_several = False

    def take(self, text: str) -> Throughput | None:
        """Return what a line reports; None for any other line, and for the first average."""
        if match := _CURRENT.search(text):
            return _report(match, match["rate"])
        if (match := _AVERAGE.search(text)) is None:
            return None
        try:
            steps, average = int(match["step"]), float(match["rate"])
        except ValueError:
            return None
        before, time_before = self._before
        time = (steps - _UNTIMED) / average if average > 0 else 0.0
        self._is_of_several |= steps == before and time != time_before
        self._before = steps, time
        if self._is_of_several or not (_UNTIMED < before < steps and time > time_before):
            return None
        return _report(match, (steps - before) / (time - time_before))


def _report(match: re.Match[str], samples_per_s: str | float) -> Throughput | None:
    try:
        return Throughput(int(match["step"]), float(samples_per_s), float(match["memory"] or -1))
    except ValueError:
        return None
