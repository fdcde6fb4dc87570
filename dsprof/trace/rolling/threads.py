"""Which threads train, as far as the records so far tell.

What a thread beside the training waits for holds no step up (`dsprof/trace/background.py`).
"""

from __future__ import annotations


class Threads:
    """Takes records in their order. A thread is known to train once its first phase has ended."""

    def __init__(self) -> None:
        self._training: set[int] = set()
        self._others: set[int] = set()  # that communicated while another thread was at work

    def train(self, thread: int) -> None:
        """Know a thread that runs a phase."""
        self._training.add(thread)

    def blocked_ns(self, thread: int, is_at_work: bool, blocked_ns: int) -> int:
        """Return how long collectives of a thread held the step up.

        `is_at_work` says whether they were issued in a phase of `AT_WORK`.
        """
        if thread <= 0 or thread in self._training:
            return blocked_ns
        if is_at_work:
            self._others.add(thread)
        return 0 if self._training and thread in self._others else blocked_ns
