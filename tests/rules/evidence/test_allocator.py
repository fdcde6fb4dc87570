"""What is known of the memory that is left."""

import pytest

from dsprof.analysis.aggregates.memory import Memory
from dsprof.analysis.aggregates.run import Run
from dsprof.rules.evidence.allocator import has_room
from dsprof.trace.device_counters import DEVICE_TOTAL, PEAK_RESERVED
from dsprof.trace.schema import MemorySample
from tests.factories.trace import header, rank_trace, summary


@pytest.mark.parametrize(
    ("counters", "is_room"),
    [
        ({DEVICE_TOTAL: 80, PEAK_RESERVED: 60}, True),
        ({DEVICE_TOTAL: 80, PEAK_RESERVED: 61}, False),
        ({DEVICE_TOTAL: 80}, False),
        ({PEAK_RESERVED: 60}, False),
        (None, False),
    ],
)
def test_a_device_has_room_in_what_it_is_known_never_to_have_reserved(counters, is_room):
    trace = rank_trace(0, 1, head=header(0, 1, device="cuda"))
    trace.memory = [MemorySample("step", 0, step=4, host_available_bytes=99, device=counters)]
    run = summary(trace)
    assert has_room(run[Memory], run[Run], 10) is is_room
