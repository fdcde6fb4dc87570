"""What py-spy prints, and what of it is kept."""

from __future__ import annotations

from dsprof.trace.dumps.py_spy import main_stacks, native_calls

TEXT = """\
Process 102: python train.py --name "a (b:1)"
Python v3.11.7 (/usr/bin/python3.11)

Thread 1300 (idle): "dsprof-writer"
    wait (threading.py:327)
Thread 102 (active+gil): "MainThread"
    wait_for_file (/home/me/data.py:88)
    __clone3 (libc.so.6)
    train (/home/me/train.py:40)
    <module> (/home/me/train.py:102)
Process 103: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 0x7F1D (idle)
    other (x.py:1)
"""


def test_the_main_thread_counts_and_native_frames_do_not() -> None:
    assert main_stacks(TEXT) == {
        102: (
            "/home/me/data.py:88 wait_for_file",
            "/home/me/train.py:40 train",
            "/home/me/train.py:102 <module>",
        ),
        103: ("x.py:1 other",),
    }


def test_of_native_frames_those_count_that_the_main_thread_is_in_and_that_say_something() -> None:
    native = """\
    0x7f282faa3f16 (libtorch_cpu.so)
    futex_wait (libc.so.6)
    sem_wait (libpthread.so.0)
    __gthread_cond_wait (libstdc++.so.6.0.30)
    std::condition_variable::wait (libtorch_cpu.so)
    time_sleep (libpython3.11.so.1.0)
    c10d::Work::wait (libtorch_cpu.so)
    pybind11::cpp_function::dispatcher (libtorch_python.so)
"""
    text = TEXT.replace("    wait_for_file", f"{native}    wait_for_file")
    assert native_calls(text) == ("c10d::Work::wait (libtorch_cpu.so)",)
    assert native_calls(TEXT) == native_calls("") == ()
    deep = "".join(f"    {'x' * length} (libtorch_cpu.so)\n" for length in (9, 999, 9, 9))
    assert [*map(len, native_calls(text.replace(native, deep)))] == [27, 120, 27]
    assert native_calls('"MainThread"\n    a (b.so)\n\nThread 9 (idle)\n') == ("a (b.so)",)


def test_any_other_text_has_no_stacks() -> None:
    assert main_stacks("Process : x\nThread\n  a (b:c)\n") == {}
    assert main_stacks("") == {}


def test_a_number_that_no_process_has_is_no_process() -> None:
    assert main_stacks(f"Process {'9' * 5000}: python\n{TEXT}") == main_stacks(TEXT)


def test_a_line_as_long_as_the_file_takes_no_longer_than_others() -> None:
    """Backtracking over each bracket and colon of it would take an hour."""
    line = f"    x{' (:1' * 250_000}"
    assert main_stacks(TEXT.replace("    other", f"{line}\n    other")) == main_stacks(TEXT)
