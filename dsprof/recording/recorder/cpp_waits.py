"""Completed collectives whose Work no Python object holds any more."""

from __future__ import annotations

from collections.abc import Callable

from dsprof.trace.schema import Collective

MOST = 1000
"""This many records are kept; beyond it the older half is handed over."""


class CppWaits:
    """Keeps records whose wait may yet be seen in another way than by their Work.

    C++ holds the Works of functional collectives and of DDP's reducer, and waits there. Whoever
    sees such a wait takes the record; the others were never waited for, and are handed over at the
    end of the next step.
    """

    def __init__(self, hand_over: Callable[[Collective], None]) -> None:
        self._hand_over = hand_over
        self._records: dict[int, Collective] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    def put(self, record: Collective) -> None:
        """Keep a record."""
        self._records[record.id] = record
        if len(self._records) > MOST:
            self._release(list(self._records)[: MOST // 2])

    def take(self, wanted: Callable[[Collective], bool]) -> list[Collective]:
        """Take out the records that are wanted, in the order of issue."""
        if not self._records:  # asked at each wait in C++
            return []
        found = [record for record in self.records() if wanted(record)]
        return [record for record in found if self._records.pop(record.id, None) is not None]

    def end_step(self, step: int) -> None:
        """Hand over what was issued before `step`, which has ended."""
        self._release([record.id for record in self.records() if record.step < step])

    def records(self) -> list[Collective]:
        """Return what is kept."""
        return list(self._records.values())

    def _release(self, ids: list[int]) -> None:
        for number in ids:
            record = self._records.pop(number, None)
            if record is not None:
                self._hand_over(record)
