"""Dumps and snapshots against damage of every kind: a run or one TraceError, nothing else."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.snapshots import Snapshots
from dsprof.analysis.run.flight_recorders import group_states, mismatches
from dsprof.analysis.summarise import summarise
from dsprof.errors import TraceError
from dsprof.findings.finding import Status
from dsprof.rules import RULES
from dsprof.rules.runner import judge
from dsprof.trace.run import find_run, is_diagnosis
from tests.factories import flight, snapshot

CALLS = [flight.call(1, done=True), flight.call(2, line=7), flight.call(2, group="5")]
DUMP = flight.document([*CALLS, flight.call(3, "send 0->1")], {"0": [0, 1], "5": [1]})
HISTORY = [snapshot.event("alloc", 1, 5), snapshot.event("free_requested", 1, 5)]
SNAPSHOT = snapshot.document([snapshot.segment(10, -6), snapshot.segment(-20)], HISTORY)
WHOLE = {
    "dump": pickle.dumps(DUMP, 2),
    "json": json.dumps(DUMP).encode(),
    "snapshot": pickle.dumps(SNAPSHOT, 4),
}
PARTS = [FlightRecorders, Snapshots]

fuzz = settings(
    max_examples=int(os.environ.get("DSPROF_FUZZ", "100")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
kinds = pytest.mark.parametrize("kind", WHOLE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank1.pickle"


def read(path: Path, data: bytes) -> bool:
    """Read and judge a file; false if it is refused."""
    path.write_bytes(data)
    is_diagnosis(path)
    try:
        summary = summarise(find_run([path]), PARTS)
    except TraceError as refusal:
        message = str(refusal)
        assert message.startswith(str(path))
        assert "\n" not in message
        return False
    group_states(summary[FlightRecorders])
    list(mismatches(summary[FlightRecorders]))
    needy = [rule for rule in RULES if set(rule.meta.needs) <= set(PARTS)]
    assert Status.ERROR not in {finding.status for finding in judge(summary, needy)}
    return True


@kinds
def test_the_whole_file_is_read(path: Path, kind: str) -> None:
    assert read(path, WHOLE[kind])


@kinds
@fuzz
@given(data=st.data())
def test_a_cut_file(path: Path, kind: str, data: st.DataObject) -> None:
    whole = WHOLE[kind]
    assert not read(path, whole[: data.draw(st.integers(0, len(whole) - 1))])


@kinds
@fuzz
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7), twice=st.integers(0, 10_000))
def test_flipped_bits(path: Path, kind: str, place: int, bit: int, twice: int) -> None:
    data = bytearray(WHOLE[kind])
    for at in (place, twice):
        data[at % len(data)] ^= 1 << bit
    read(path, bytes(data))


@kinds
@fuzz
@given(
    place=st.integers(0, 10_000),
    noise=st.binary(min_size=1, max_size=32)
    | st.sampled_from([b"[" * 3000, b"NaN", b"1e999", b"9" * 40, b"(" * 500, b"r\xff\xff\xff\x7f"]),
)
def test_noise_in_the_middle(path: Path, kind: str, place: int, noise: bytes) -> None:
    start = place % len(WHOLE[kind])
    read(path, WHOLE[kind][:start] + noise + WHOLE[kind][start:])


@fuzz
@given(data=st.binary(max_size=256))
@example(b"]" * 100_000)
@example(b"(" * 100_000)
@example(b"(]" * 50_000 + b"." * 10)
def test_any_opcodes_at_all(path: Path, data: bytes) -> None:
    read(path, b"\x80\x02\x8c\x09pg_config\x8c\x09pg_status" + data)
    read(path, b"\x80\x04\x8c\x08segments\x8c\x0atotal_size" + data)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("document", [DUMP, SNAPSHOT], ids=["dump", "snapshot"])
@fuzz
@given(data=st.data())
def test_a_field_with_any_value(path: Path, document: dict[str, Any], data: st.DataObject) -> None:
    document = pickle.loads(pickle.dumps(document))
    places: list[Any] = [document]
    for part in places:
        inner = part.values() if isinstance(part, dict) else part
        places += [one for one in inner if isinstance(one, (dict, list)) and one]
    place = data.draw(st.sampled_from(places))
    keys = sorted(place) if isinstance(place, dict) else range(len(place))
    place[data.draw(st.sampled_from(keys))] = data.draw(values)
    for protocol in (2, 4):
        read(path, pickle.dumps(document, protocol))
    read(path, json.dumps(document, default=str).encode())


def test_one_list_in_many_places_is_cut_short(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of kilobytes that would be a billion numbers if each place had its own."""
    sizes = [[1] * 50_000] * 50_000
    entry = flight.call(1, input_sizes=sizes, output_sizes=sizes, frames=[{}] * 100_000)
    assert read(path, pickle.dumps(flight.document([entry] * 100)))
    monkeypatch.setattr("dsprof.trace.readers.memory_snapshot._MOST_BLOCKS", 1000)
    path.write_bytes(pickle.dumps(snapshot.document([snapshot.segment(*[3, -1] * 100)] * 9)))
    [one] = summarise(find_run([path]), PARTS)[Snapshots].ranks.values()
    assert one.segments == 9
    assert one.peak is None
