import pytest

from dsprof.recording.watchdog.history import LOOKS, History
from dsprof.recording.watchdog.standings import condition_of
from dsprof.recording.watchdog.thread import asks_store, later
from dsprof.trace.dumps.hang_dump import HangDump, ProcessState, ThreadStack
from tests.factories.trace import header

SECOND_NS = 1_000_000_000


def dump(at_s, *frames, **fields):
    threads = [ThreadStack("MainThread", frames)]
    return HangDump(header(), at_s * SECOND_NS, 7, "waits", threads=threads, **fields)


def seen(*stacks):
    history = History()
    for number, frames in enumerate(stacks):
        history.add({0: dump(60 * number, *frames)})
    return history.busy(0)


def test_a_rank_that_stays_at_one_place_is_said_to_be_there_and_for_how_long():
    loop = [(f"train.py:{line} spin", "train.py:90 main") for line in (3, 4, 3, 4)]
    said = seen(*loop)
    assert "rank 0 has been busy at train.py:4 spin for 180 s" in said
    assert "4 looks" in said


@pytest.mark.parametrize("other", ["train.py:3 load", "loss.py:3 spin"])
def test_a_rank_that_was_elsewhere_meanwhile_is_not(other):
    here = ("train.py:3 spin", "train.py:90 main")
    assert seen(here, here, (other, "train.py:90 main"), here, here) == ""
    assert seen(here, here) == ""


def test_a_look_that_shows_no_stack_says_nothing_of_the_place():
    here = ("train.py:3 spin", "train.py:90 main")
    assert "busy at train.py:3 spin for 240 s" in seen(here, (), here, here, here)
    assert "busy at train.py spin for 240 s" in seen(here, here, here, here, ())


def test_a_rank_without_a_stack_is_nowhere():
    assert seen(*[()] * LOOKS) == ""


def test_who_waits_for_a_file_from_one_inquiry_to_the_next_saves_nothing():
    def saving(moved_bytes, waits_in="anon_pipe_write", state="S"):
        process = ProcessState(state=state, waits_in=waits_in, thread_io_bytes=moved_bytes)
        return dump(0, "/site/torch/serialization.py:987 save", process=process)

    assert condition_of(saving(5)) == "saving"
    assert condition_of(saving(6), saving(5)) == "saving"
    assert condition_of(saving(5), saving(5)) == "idle"
    fuse = saving(5, "request_wait_answer")
    assert condition_of(fuse, fuse) == "idle"
    assert condition_of(saving(5, "", "D"), saving(5, "", "D")) == "idle"
    assert condition_of(saving(5), dump(0, "train.py:3 step")) == "saving"
    loading = dump(0, "train.py:3 load", process=saving(5).process)
    assert condition_of(saving(5), loading) == "saving"
    assert condition_of(saving(5, "futex_do_wait"), saving(5, "futex_do_wait")) == "saving"


def test_the_store_is_asked_more_rarely_in_a_long_silence() -> None:
    assert [ticks for ticks in range(600) if asks_store(ticks)] == [
        *range(0, 60, 2),
        64,
        128,
        256,
        512,
    ]


def test_inquiries_of_one_silence_become_rarer():
    due, patience = [], 1
    for _ in range(8):
        due.append(patience)
        patience = later(patience)
    assert due == [1, 2, 5, 10, 20, 50, 100, 200]
