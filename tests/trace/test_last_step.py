"""The figures of the last step: those of its records, once what it waited for has ended."""

from dsprof.trace.schema import DeviceStep, Flush, MemorySample, Stall, Step
from dsprof.trace.writing.last_step import LastStep
from tests.factories.trace import ns, sync

MEMORY = MemorySample("step", 0, rss_bytes=7)
ON_DEVICE = MemorySample("step", 0, device={"reserved_bytes.all.current": 9})  # a hook's


def ended(number: int, ms: float = 100) -> Step:
    return Step(number, ns(ms * number), ns(ms * (number + 1)))


def test_a_step_is_shown_when_the_next_one_has_ended() -> None:
    last = LastStep()
    last.take(sync("all_reduce", 10, 20, nbytes=100, step=0).args)
    last.take(sync("barrier", 40, 5, nbytes=0, step=0).args)
    last.take(Flush(1, 2, 10, 0, 1, step=0))
    last.end(ended(0), MEMORY, "cpu")
    last.take(ON_DEVICE)
    assert last.figures == {}
    late = sync("all_reduce", 90, 15, nbytes=50, step=0)
    last.take(late.args)
    last.end(ended(1), MEMORY, "cpu")
    assert last.figures == {
        "dsprof/step": 0,
        "dsprof/step_seconds": 0.1,
        "dsprof/exposed_seconds": 0.04,
        "dsprof/exposed_share": 0.4,
        "dsprof/collectives": 3,
        "dsprof/bytes": 150,
        "dsprof/flushes": 1,
        "dsprof/host_memory_bytes": 7,
        "dsprof/device_reserved_bytes": 9,
    }


def test_requests_that_never_reached_the_wire_are_no_bytes() -> None:
    last = LastStep()
    last.take(sync("all_reduce", 0, 1, nbytes=100, on_wire=False, step=0).args)
    last.end(ended(0), MEMORY, "cpu")
    last.end(ended(1), MEMORY, "cpu")
    assert (last.figures["dsprof/collectives"], last.figures["dsprof/bytes"]) == (0, 0)


def test_on_a_device_its_clock_says_how_long_a_step_took() -> None:
    last = LastStep()
    last.end(ended(0), MEMORY, "cuda")
    last.end(ended(1), MEMORY, "cuda")
    assert last.figures == {}
    last.take(Stall("wait", 0, 1, ns(30), step=0))
    last.take(Stall("wait", 5, 1, ns(30), step=0, is_side=True))
    last.take(DeviceStep(0, ns(20), ns(80)))
    assert last.figures["dsprof/step_seconds"] == 0.06
    assert last.figures["dsprof/exposed_share"] == 0.5


def test_what_never_ends_does_not_grow() -> None:
    last = LastStep()
    for number in range(1000):
        last.take(sync("all_reduce", number, 1, step=number).args)
        last.end(ended(number), MEMORY, "cuda")
    assert len(last._sums) <= 16
