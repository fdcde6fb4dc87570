"""Verdicts from what ncclras prints."""

from __future__ import annotations

from dsprof.analysis.hang.ras import ras_verdicts
from dsprof.trace.dumps.nccl_ras import communicators

HEAD = """\
NCCL version 2.27.3 compiled with CUDA 12.9

Job summary
===========

  Nodes  Processes         GPUs
(total)   per node  per process
      1          8            1

Errors
======
"""
MISSING = """
#0-0 (b3398875) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 5 -- GPU 5 managed by process 105 on node 10.0.0.1
"""
BEHIND = """
Warnings
========

#1-0 (fa93daea) MISMATCH
  Communicator ranks have different AllGather operation counts
  1 rank has launched up to operation 640
  Rank 3 -- GPU 3 managed by process 103 on node 10.0.0.1
  7 ranks have launched up to operation 641
"""
AHEAD = """
#2-0 (fa93daea) MISMATCH
  Communicator ranks have different AllGather operation counts
  6 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 1 -- GPU 1 managed by process 101 on node 10.0.0.1
  Rank 2 -- GPU 2 managed by process 102 on node 10.0.0.1
"""


def test_a_rank_that_does_not_answer_is_a_suspect() -> None:
    [found] = ras_verdicts(communicators(HEAD + MISSING))
    assert (found.kind, found.ranks, found.is_healthy) == ("unknown", (5,), False)
    assert found.sentence == "Rank 5 of communicator 0-0 did not answer RAS."


def test_a_rank_that_is_behind_is_named() -> None:
    [found] = ras_verdicts(communicators(HEAD + BEHIND))
    assert (found.kind, found.ranks, found.confidence) == ("never_entered", (3,), "medium")
    assert found.sentence == "Rank 3 of communicator 1-0 is behind: 640 of 641 AllGather calls."


def test_where_most_are_behind_nobody_is_accused() -> None:
    [found] = ras_verdicts(communicators(HEAD + AHEAD))
    assert (found.ranks, found.waiting, found.confidence) == ((), (1, 2), "low")
    assert found.sentence.startswith("6 ranks of communicator 2-0 are behind")


def test_a_healthy_job_and_any_other_text_have_none() -> None:
    assert communicators(HEAD) == []
    assert communicators("  Rank 3 -- GPU\nMissing communicator data from 9 ranks\n") == []


def test_numbers_that_no_counter_reaches_are_passed_over() -> None:
    many = "9" * 5000
    lines = f"  {many} ranks have launched up to operation {many}\n  Rank {many} -- GPU 3\n"
    assert communicators(HEAD + BEHIND + lines) == communicators(HEAD + BEHIND)
