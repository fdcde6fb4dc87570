"""The sentences of verdicts on hangs, for any number of ranks and of collectives."""

from __future__ import annotations

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.hang import words
from dsprof.analysis.hang.fates import fate_of
from dsprof.analysis.hang.flight_recorders import GroupState

STATE = GroupState("0", "world", (0, 1, 2), 1, 0, seq=12_345)


def test_numbers_of_collectives_have_marks_of_thousands() -> None:
    assert words.link(STATE) == "collective 12,345 of world"
    assert words.call(STATE) == "collective 12,345 of group world"


def test_a_cause_that_ranks_share_reads_as_well_for_one_as_for_two() -> None:
    one, two = (fate_of(rank, Endings({}, {}), STATE).cause.text for rank in (1, 2))
    assert one == two == "A rank that never arrives hung, crashed, or took a different branch."
