import sys
import threading
from concurrent.futures import Future

import pytest

from dsprof.recording.recorder.recorder import Recorder
from dsprof.recording.trailer import trailer_of
from dsprof.recording.watchdog import crash
from dsprof.recording.watchdog.crash import CrashNotes, raised_at


@pytest.fixture
def hooks(monkeypatch):
    """Hooks of somebody else, that stay in place."""
    called = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: called.append(args))
    monkeypatch.setattr(threading, "excepthook", lambda args: called.append(args))
    return called


def fail():
    raise ValueError("of the user")


def test_an_uncaught_exception_is_noted_and_passed_on(hooks):
    notes = CrashNotes([].append)
    try:
        fail()
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)

    assert notes.failed_ns > 0
    assert notes.raised_at.endswith(" fail")
    assert len(hooks) == 1


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        ("[Rank 0]: Rank 2 failed to pass monitoredBarrier in 3000 ms", "timeout"),
        ("[unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation", "timeout"),
        ("[pair.cc:553] Connection closed by peer [127.0.0.1]:42919", "connection"),
        ("Failed to recv, got 0 bytes. Connection was likely closed.", "connection"),
        ("remote process exited or there was a network error, NCCL version 2.27.5", "connection"),
        ("Received data size doesn't match expected size", ""),
    ],
)
def test_how_communication_was_lost_is_in_the_message_of_the_exception(hooks, message, lost):
    notes = CrashNotes([].append)
    sys.excepthook(RuntimeError, RuntimeError(message), None)
    assert notes.lost == lost


def test_what_was_killed_for_memory_since_then_is_in_the_trailer(
    hooks, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    kills = iter((2, 3))
    monkeypatch.setattr(crash, "oom_kills", lambda _: next(kills))
    notes = CrashNotes([].append)
    assert trailer_of(recorder, notes, 0, "exit").oom_kills == 1


@pytest.mark.parametrize(
    ("kind", "name"), [(ValueError, "ValueError"), (KeyboardInterrupt, ""), (None, "")]
)
def test_the_trailer_names_an_uncaught_exception_but_ctrl_c(
    hooks,
    monkeypatch: pytest.MonkeyPatch,
    recorder: Recorder,
    kind: type[BaseException] | None,
    name: str,
) -> None:
    monkeypatch.delattr(sys, "last_type", raising=False)
    notes = CrashNotes([].append)
    if kind is not None:
        sys.excepthook(kind, kind(), None)
    assert trailer_of(recorder, notes, 0, "exit").exception == name


def test_an_exception_of_a_thread_is_a_note(hooks):
    told = []
    notes = CrashNotes(told.append)
    thread = threading.Thread(target=fail, name="loader")
    thread.start()
    thread.join()
    notes.close()

    assert [note.text for note in told] == [
        f"thread loader ended by ValueError at {__file__}:{fail.__code__.co_firstlineno + 1} fail"
    ]
    assert notes.failed_ns == 0
    assert len(hooks) == 1


def test_afterwards_the_hooks_are_those_from_before(hooks):
    before = sys.excepthook, threading.excepthook
    CrashNotes([].append).close()

    assert (sys.excepthook, threading.excepthook) == before


def test_a_hook_that_others_put_on_top_stays_and_notes_nothing_more(hooks):
    notes = CrashNotes([].append)
    inner = sys.excepthook
    sys.excepthook = on_top = lambda *args: inner(*args)
    notes.close()
    sys.excepthook(ValueError, ValueError(), None)

    assert sys.excepthook is on_top
    assert notes.failed_ns == 0
    assert len(hooks) == 1


def test_the_place_is_the_callers_where_python_itself_raised() -> None:
    """As where a future returns what its thread raised."""
    future: Future[None] = Future()
    future.set_exception(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError) as raised:
        future.result()
    assert raised_at(raised.value.__traceback__).startswith(f"{__file__}:")


def test_without_a_traceback_the_place_is_unknown():
    assert raised_at(None) == ""


def test_where_it_was_raised_is_in_no_library():
    library = {}
    exec(compile("def divide(n): return 1 / n", "/venv/site-packages/sums.py", "exec"), library)
    with pytest.raises(ZeroDivisionError) as raised:
        library["divide"](0)
    where = raised_at(raised.value.__traceback__)
    assert where.endswith(" test_where_it_was_raised_is_in_no_library")


def test_a_program_in_a_folder_of_our_name_is_the_users():
    program = {}
    exec(compile("def divide(n): return 1 / n", "/home/me/dsprof/train.py", "exec"), program)
    with pytest.raises(ZeroDivisionError) as raised:
        program["divide"](0)
    assert raised_at(raised.value.__traceback__) == "/home/me/dsprof/train.py:1 divide"
