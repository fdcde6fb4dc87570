"""Verdicts from dumps of torch's flight recorder."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.hang.verdict import HangVerdict, verdicts
from dsprof.analysis.summarise import summarise
from dsprof.trace.run import find_run
from tests import shared_data
from tests.factories import flight
from tests.factories.hangs import RANKS


def dumped(folder: Path) -> list[HangVerdict]:
    run = summarise(find_run([folder]), [FlightRecorders, Endings])
    return verdicts(run[Endings], run[FlightRecorders])


def test_dumps_name_the_rank_that_did_not_come(tmp_path: Path) -> None:
    for number in range(RANKS):
        entries = [flight.call(1, done=True), *([flight.call(2, line=7)] if number != 2 else [])]
        flight.write(tmp_path, number, flight.document(entries, {"0": range(RANKS)}))
    [found] = dumped(tmp_path)
    assert (found.kind, found.ranks, found.waiting) == ("never_entered", (2,), (0, 1, 3))
    assert found.stacks == {"0": ("/home/me/train.py:7 train",)}


def test_dumps_name_the_rank_whose_device_has_not_started_what_others_are_in(
    tmp_path: Path,
) -> None:
    for number in range(RANKS):
        state = "scheduled" if number == 2 else "started"
        entries = [flight.call(1, done=True), flight.call(2, state=state)]
        flight.write(tmp_path, number, flight.document(entries, {"0": range(RANKS)}))
    [found] = dumped(tmp_path)
    assert (found.kind, found.ranks, found.confidence) == ("unknown", (2,), "low")
    assert found.sentence.endswith(
        "every rank with a dump had joined it, but the device of rank 2 had not started it."
    )


def test_sends_in_flight_in_dumps_are_named(tmp_path: Path) -> None:
    send = flight.call(2, "send 0->1", is_p2p=True, p2p_seq_id=1)
    for number, entries in enumerate(
        [[flight.call(1, done=True), send], [flight.call(1, done=True)]]
    ):
        flight.write(tmp_path, number, flight.document(entries))
    [found] = dumped(tmp_path)
    assert (found.kind, found.ranks) == ("unknown", ())
    assert found.sentence == (
        "Only sends and receives were in flight in the dumps: rank 0 in send with rank 1."
    )


def test_one_dump_of_several_shows_nobodys_wait(tmp_path: Path) -> None:
    flight.write(tmp_path, 1, flight.document([flight.call(1)], {"0": range(RANKS)}))
    [found] = dumped(tmp_path)
    assert (found.kind, found.ranks) == ("unknown", ())
    assert found.sentence == "Unknown: only rank 1 was dumped."


def test_dumps_of_one_group_in_flight_speak_of_no_others(tmp_path: Path) -> None:
    for number in range(RANKS):
        entries = [flight.call(1, done=True), flight.call(2)]
        flight.write(tmp_path, number, flight.document(entries, {"0": range(RANKS)}))
    [found] = dumped(tmp_path)
    assert found.sentence.endswith(" was in flight; every rank with a dump had joined it.")
    assert "more group" not in found.sentence


@pytest.mark.parametrize(
    ("name", "injected", "kind"),
    [("nvrx_gpu_error_1st", (12, 14), "frozen"), ("nvrx_lock_gil_2nd", (10, 15), "never_entered")],
)
def test_real_dumps_name_the_ranks_in_which_faults_were_injected(
    name: str, injected: tuple[int, ...], kind: str
) -> None:
    [found] = dumped(shared_data.folder("flight_recorder") / name)
    assert (found.ranks, found.kind) == (injected, kind)
