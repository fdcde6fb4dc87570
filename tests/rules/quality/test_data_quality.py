"""What data-quality says of ranks and records that are missing."""

from __future__ import annotations

import errno
import os

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.findings.finding import Severity, Status
from dsprof.rules.quality.data_quality import DataQuality
from dsprof.trace.run import find_run
from dsprof.trace.schema import Trailer
from tests.factories.trace import judged, said, zero_rank
from tests.factories.trace_files import write_run

RULE = DataQuality()


def with_trailer(**fields):
    return zero_rank(0, trailer=Trailer(reason="exit", **fields)), zero_rank(1)


def test_a_whole_record_passes():
    assert said(RULE, zero_rank(0), zero_rank(1)).status is Status.PASS


def foreign(rank, world_size=2, **fields):
    return zero_rank(rank, world_size, is_foreign=True, **fields)


def test_files_of_other_tools_pass_without_a_promise():
    finding = said(RULE, foreign(0), foreign(1))
    assert finding.status is Status.PASS
    assert finding.title == "The files show no gaps"
    assert "whether they are complete is unknown" in finding.summary
    assert said(RULE, foreign(0), zero_rank(1)).title == "The record is complete"


def test_gaps_in_files_of_other_tools_are_not_blamed_on_a_recording():
    cut, lost, missing = judged(RULE, foreign(0, trailer=None, broken_lines=1))
    assert (missing.status, missing.ranks) == (Status.INFO, (1,))
    assert "doctor" not in missing.action
    assert cut.summary == "The files of rank 0 are truncated: the end is missing."
    assert "fewer steps" not in lost.action


def test_the_number_of_ranks_is_not_stated_where_it_is_unknown():
    ranks = [foreign(rank, 5) for rank in (0, 3, 4)]
    for rank in ranks:
        rank.is_world_known = False
    expected = "The files contain nothing of ranks 1-2; the number of ranks is unknown."
    assert said(RULE, *ranks).summary == expected


def test_missing_ranks_are_named():
    finding = said(RULE, zero_rank(1, 4))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.ranks == (0, 2, 3)
    assert "traces of 3 of 4 ranks are missing: ranks 0, 2-3" in finding.summary


def test_a_skipped_file_is_named_as_the_cause_of_a_missing_rank(tmp_path):
    _, second = write_run(tmp_path)
    second.write_bytes(second.read_bytes().replace(b'"schema_version":1', b'"schema_version":9'))
    finding = _of_ranks(tmp_path)
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert finding.cause.startswith(f"Skipped: {second}: written in trace version 9, ")
    assert "all hosts" not in f"{finding.fix} {finding.action}"
    second.unlink()
    write_run(tmp_path / "before", started_epoch_ns=10**18)[1].rename(second)
    finding = _of_ranks(tmp_path)  # the file is of an earlier run
    assert finding.fix == "Give the files of all hosts together"


def _of_ranks(folder):
    findings = diagnose(find_run([folder])).findings
    return next(one for one in findings if one.rule == RULE.meta.id and one.ranks)


def test_a_disk_that_was_full_is_named_and_not_blamed_on_the_writer():
    error = {"disk_error": "No space left on device", "dropped": 90, "steps": 1500}
    ranks = [
        zero_rank(rank, 3, trailer=Trailer(reason="exit", **(error | {"lost_steps": lost})))
        for rank, lost in enumerate((1200, 7))
    ]
    [finding] = judged(RULE, *ranks, zero_rank(2, 3))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.ranks == (0, 1)
    assert finding.summary == (
        "The disk refused records of up to 1,200 of 1,500 steps of ranks 0-1: No space left on "
        "device. Figures cover the rest."
    )
    assert "Free space" in finding.action


def test_a_full_disk_is_named_where_there_are_no_steps():
    [finding] = judged(RULE, *with_trailer(disk_error="Input/output error", dropped=90))
    assert finding.summary == (
        "The disk refused 90 records of rank 0: Input/output error. Figures cover the rest."
    )
    assert "0 of" not in finding.problem


def test_a_limit_of_file_sizes_is_no_full_disk():
    """As `ulimit -f` sets it: free space does not help."""
    finding = said(RULE, *with_trailer(disk_error=os.strerror(errno.EFBIG), dropped=90))
    assert "disk" not in finding.fix + finding.action + finding.cause
    assert "`ulimit -f`" in finding.cause
    assert finding.action.startswith("Raise that limit")


def test_many_missing_ranks_are_a_range():
    assert "are missing: ranks 1-999." in said(RULE, zero_rank(0, 1000)).summary


def test_a_damaged_file_is_copied_again_before_another_run_is_recorded():
    damaged, dropped = (
        next(f for f in judged(RULE, *traces) if f.problem == "Parts of the record are lost").action
        for traces in ((zero_rank(0, broken_lines=3), zero_rank(1)), with_trailer(dropped=1))
    )
    assert damaged.startswith("Copy the file again")
    assert dropped.startswith("Write to a faster disk")


@pytest.mark.parametrize(
    ("traces", "text"),
    [
        (with_trailer(dropped=1200), "1,200 dropped events"),
        ((zero_rank(0, broken_lines=1), zero_rank(1)), "1 unreadable line."),
    ],
    ids=["dropped", "broken"],
)
def test_lost_parts_are_counted(traces, text):
    finding = said(RULE, *traces)
    assert finding.status is Status.FAIL
    assert text in finding.summary


def test_each_kind_of_gap_is_a_finding_of_its_own():
    findings = judged(RULE, zero_rank(1, 4, trailer=None, broken_lines=1))
    assert [finding.status for finding in findings] == [Status.FAIL] * 3
