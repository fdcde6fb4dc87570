"""Calls that one thread has made in the main thread."""

from __future__ import annotations

import pytest

from dsprof.recording.capture.profiler.main_thread import caller


def run_python() -> None:
    """Run code between whose instructions the interpreter makes what is pending."""
    for number in range(1000):
        str(number)


def test_a_call_that_is_asked_for_while_it_is_made_is_not_made_again() -> None:
    """Python 3.11 would spin for ever in a traced function that it calls after that."""
    made: list[int] = []

    def call() -> None:
        made.append(len(made))
        if len(made) < 4:
            call_soon()

    call_soon = caller(call)
    call_soon()
    run_python()
    assert made == [0]
    call_soon()
    run_python()
    assert made == [0, 1]


def test_a_call_that_raised_is_made_again() -> None:
    def call() -> None:
        raise ValueError("raised")

    call_soon = caller(call)
    for _ in range(2):
        with pytest.raises(ValueError, match="raised"):  # noqa: PT012 - between its instructions
            call_soon()
            run_python()
