from __future__ import annotations

import pytest

from dsprof.trace.readers.call_rows import Call, CallRows
from dsprof.trace.schema import Step


def call(start_ns: int, group: int = 1, seq: int = -1, nbytes: int = 8) -> Call:
    return Call("all_reduce", group, 4, nbytes, "half", 7, start_ns, start_ns + 3, seq)


def test_more_calls_than_a_chunk_are_numbered_on() -> None:
    count = 25_000
    rows = CallRows()
    rows.add(call(n, group=n % 2) for n in range(count))
    built = rows.build()
    assert built.id.tolist() == list(range(count))
    assert built.seq.tolist() == [n // 2 for n in range(count)]
    assert (built.done_ns - built.issue_ns).tolist() == [3] * count


def test_a_number_that_the_tool_gave_is_kept_and_counted_on_from() -> None:
    rows = CallRows()
    rows.add([call(0), call(1, seq=9), call(2), call(3, group=2)])
    assert rows.build().seq.tolist() == [0, 9, 10, 0]


def test_each_call_is_in_the_step_around_its_start() -> None:
    rows = CallRows([Step(4, 10, 20), Step(7, 30, 40)])
    rows.add([call(at) for at in (9, 10, 19, 20, 30, 40)])
    assert rows.build().step.tolist() == [-1, 4, 4, -1, 7, -1]


def test_what_is_not_told_has_its_default() -> None:
    rows = CallRows()
    rows.add([call(0), call(1, nbytes=0)])
    built = rows.build()
    assert [built.words[code] for code in built.dtype] == ["half", "half"]
    assert built.words[built.phase[0]] == ""
    assert (built.peer.tolist(), built.engine.tolist()) == ([-1, -1], [-1, -1])
    assert (built.tensors.tolist(), built.on_wire.tolist()) == ([1, 0], [True, True])


def test_a_number_beyond_64_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        CallRows().add([call(0), call(1 << 63)])


def test_no_calls_are_no_rows() -> None:
    rows = CallRows()
    rows.add([])
    assert len(rows.build()) == 0
