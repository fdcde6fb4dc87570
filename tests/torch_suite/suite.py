"""PyTorch's own distributed tests over gloo; each rank also writes what torch saw it issue.

`BACKEND`, `WORLD_SIZE` and all `SUITE_*` of `__main__` must be set before this is imported.

The ranks of a test are forked from a process that has imported torch without dsprof: importing it
for each would take hours. A rank then starts recording by what torch calls at the end of its
import, and ends it by what runs at exit, which forked processes of multiprocessing leave out.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

if os.environ["SUITE_DSPROF"] == "1":
    import dsprof.hooks.registry  # noqa: F401 - imported once, not by each rank of each test
    from dsprof.recording import session
    from dsprof_autostart import autostart


def seen_by_torch() -> int:
    """Return how many operations this process issued, by torch's own flight recorder and counter.

    The recorder knows no point-to-point operations, the counter those of the default group only.
    """
    dump = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))
    counted = 0
    if dist.is_initialized():
        counted = dist.group.WORLD._get_sequence_number_for_group()  # type: ignore[union-attr]
    return max(len(dump.get("entries", ())), counted)


class TorchSuite(TestDistBackend, DistributedTest._DistTestBase):
    """The tests, each in processes of its own that record into a folder of its own."""

    def setUp(self) -> None:
        super().setUp()
        self.folder.mkdir(parents=True, exist_ok=True)
        os.environ["DSPROF_OUT"] = str(self.folder / "trace")
        self._start_processes(multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, *args: Any, **kwargs: Any) -> None:
        if os.environ["SUITE_DSPROF"] != "1":
            super()._run(*args, **kwargs)
            return
        os.environ["DSPROF"] = "1"
        os.environ["DSPROF_INTERCEPTION"] = os.environ["SUITE_INTERCEPTION"]
        autostart()
        try:
            super()._run(*args, **kwargs)
        finally:
            session.stop("exit")

    @property
    def folder(self) -> Path:
        """Where the ranks of this test leave what they saw."""
        return Path(os.environ["SUITE_OUT"]) / self._current_test_name()

    def run_test(self, test_name: str, parent_pipe: Any) -> None:
        """Run the test in this rank, then write down what torch saw."""
        try:
            super().run_test(test_name, parent_pipe)
        finally:
            (self.folder / f"torch.rank{self.rank}").write_text(str(seen_by_torch()))
