"""Verdicts from what ncclras prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
  7 ranks have launched up to operation 641
  Rank 3 has launched up to operation 640 -- GPU 3 managed by process 103 on node 10.0.0.1
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


def test_each_operation_in_which_ranks_differ_is_counted_apart() -> None:
    lines = """
  Communicator ranks have different AllReduce operation counts
  5 ranks have launched up to operation 3
  3 ranks have not launched any operations
  Rank 1 -- GPU 1 managed by process 101 on node 10.0.0.1
  Rank 2 -- GPU 2 managed by process 102 on node 10.0.0.1
  Rank 6 -- [process information not found]
"""
    first, second = ras_verdicts(communicators(HEAD + BEHIND + lines))
    assert first.sentence == "Rank 3 of communicator 1-0 is behind: 640 of 641 AllGather calls."
    assert second.sentence == "Ranks 1-2, 6 of communicator 1-0 are behind: 0 of 3 AllReduce calls."


def test_calls_that_may_go_on_are_to_be_counted_again() -> None:
    [found] = ras_verdicts(communicators(HEAD + BEHIND))
    assert found.remedy.startswith("Query RAS again: if the counts have grown, the job is not ")
    assert "process 103 on 10.0.0.1" in found.remedy


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("  Missing communicator data from 2 ranks\n  The missing ranks: 21,23\n",
         "Ranks 21, 23 of communicator 0-1 did not answer RAS."),
        ("  Missing communicator data from 12 ranks\n",
         "12 ranks of communicator 0-1 did not answer RAS."),
        ("  Asynchronous error on 1 rank\n  Rank 4 reported System error -- GPU 4 managed by "
         "process 7 on node a\n",
         "Rank 4 of communicator 0-1 reports an error of NCCL: System error."),
        ("  Asynchronous errors on 30 ranks\n  30 ranks reported Remote process error\n",
         "30 ranks of communicator 0-1 report an error of NCCL: Remote process error."),
    ],
)  # fmt: skip
def test_ranks_that_failed_or_are_silent_are_problems(lines: str, sentence: str) -> None:
    [found] = ras_verdicts(communicators(f"{HEAD}\n#0-1 (27a079b8) INCOMPLETE,ERROR\n{lines}"))
    assert (found.sentence, found.is_healthy) == (sentence, False)


def ras_json(*ranks: dict[str, Any], silent: int = -1) -> str:
    missing = [{"rank": silent, "host": "b", "pid": 9, "status": {"unresponsive": True}}]
    member = {"rank": 90, "host": "b", "pid": 10, "status": {"unresponsive": False}}
    communicator = {"hash": "0xae94", "ranks": ranks, "missing_ranks": [member]}
    if silent >= 0:
        communicator["missing_ranks"] = [member, *missing]
    return json.dumps({"communicators_count": 1, "communicators": [communicator]})


def rank_of(number: int, calls: int, error: int = 0) -> dict[str, Any]:
    counts = {"AllGather": 7, "AllReduce": calls}
    state = {"init_state": 0, "async_error": error}
    return {"rank": number, "host": "a", "pid": 100 + number, "status": state,
            "collective_counts": counts}  # fmt: skip


def test_json_says_the_same() -> None:
    text = ras_json(rank_of(0, 5), rank_of(1, 4), rank_of(2, 5, error=6), silent=3)
    assert [found.sentence for found in ras_verdicts(communicators(text))] == [
        "Rank 2 of communicator 0xae94 reports an error of NCCL: Remote process error.",
        "Rank 3 of communicator 0xae94 did not answer RAS.",
        "Rank 1 of communicator 0xae94 is behind: 4 of 5 AllReduce calls.",
    ]
    assert communicators(ras_json(rank_of(0, 5), rank_of(1, 5))) == []
    assert communicators(f"$ ncclras -f json\n{text}\n$") == communicators(text)


def test_a_missing_rank_of_nccl_2_28_is_read_though_a_comma_is_missing() -> None:
    text = ras_json(rank_of(0, 5), silent=3).replace('"pid": 9, ', '"pid": -1, "nvml_dev": 1\n')
    [found] = ras_verdicts(communicators(text) or [])
    assert found.sentence == "Rank 3 of communicator 0xae94 did not answer RAS."
    assert not found.remedy  # RAS does not know the process


def test_processes_that_died_are_told_where_no_communicator_is_left() -> None:
    lines = """
DEAD
  2 job processes are considered dead (unreachable via the RAS network)
  Process 107 on node 10.0.0.1 managing GPU 7
  Process 207 on node 10.0.0.2 managing GPU 7
"""
    [found] = ras_verdicts(communicators(HEAD + lines) or [])
    assert found.sentence == (
        "2 processes did not answer RAS: process 107 on 10.0.0.1, process 207 on 10.0.0.2."
    )
    assert (found.is_healthy, "process 107 on" in found.remedy) == (False, True)
    [found] = ras_verdicts(communicators(HEAD + lines + MISSING) or [])  # says it by ranks
    assert found.ranks == (5,)


def test_json_that_ends_early_is_not_one_without_problems() -> None:
    text = ras_json(rank_of(0, 5), rank_of(1, 4))
    assert communicators(text)
    assert communicators(text[:-20]) is None


def test_where_most_are_behind_nobody_is_accused() -> None:
    [found] = ras_verdicts(communicators(HEAD + AHEAD))
    assert (found.ranks, found.waiting, found.confidence) == ((), (1, 2), "low")
    assert found.sentence.startswith("6 ranks of communicator 2-0 are behind")


def test_a_healthy_job_and_any_other_text_have_none() -> None:
    assert communicators(HEAD) == []
    [found] = ras_verdicts([])
    assert found.is_healthy
    assert communicators("  Rank 3 -- GPU\nMissing communicator data from 9 ranks\n") == []


def test_numbers_that_no_counter_reaches_are_passed_over() -> None:
    many = "9" * 5000
    lines = f"  {many} ranks have launched up to operation {many}\n  Rank {many} -- GPU 3\n"
    assert communicators(HEAD + BEHIND + lines) == communicators(HEAD + BEHIND)
