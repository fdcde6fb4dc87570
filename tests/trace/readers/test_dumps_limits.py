"""Dumps and snapshots made to fill the memory."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.snapshots import Snapshots
from dsprof.analysis.summarise import summarise
from dsprof.trace.run import find_run
from tests.factories import flight, snapshot


def test_one_list_in_many_places_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of kilobytes that would be a billion numbers if each place had its own."""
    path = tmp_path / "rank1.pickle"
    sizes = [[1] * 50_000] * 50_000
    entry = flight.call(1, input_sizes=sizes, output_sizes=sizes, frames=[{}] * 100_000)
    path.write_bytes(pickle.dumps(flight.document([entry] * 100)))
    assert summarise(find_run([path]), [FlightRecorders])[FlightRecorders].ranks
    monkeypatch.setattr("dsprof.trace.readers.memory_snapshot._MOST_BLOCKS", 1000)
    path.write_bytes(pickle.dumps(snapshot.document([snapshot.segment(*[3, -1] * 100)] * 9)))
    [one] = summarise(find_run([path]), [Snapshots])[Snapshots].ranks.values()
    assert one.segments == 9
    assert one.peak is None
