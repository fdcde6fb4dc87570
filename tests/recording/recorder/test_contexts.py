"""Each thread has its own context: on whose behalf it communicates."""

from __future__ import annotations

import threading

from dsprof.recording.recorder.contexts import Contexts
from dsprof.recording.recorder.hot_state import NOBODY, Context, HotState


def test_each_thread_has_its_own_context() -> None:
    contexts = Contexts(HotState())
    barrier, wrong = threading.Barrier(12), []

    def communicate(number: int) -> None:
        for request in range(1, 4):
            own = Context(request, flush=number)
            contexts.become(own)
            barrier.wait()
            if contexts.current() is not own:
                wrong.append(number)
            if request == number % 3 + 1:
                contexts.become(NOBODY)
            barrier.wait()
            if contexts.current() is not (NOBODY if request == number % 3 + 1 else own):
                wrong.append(number)

    threads = [threading.Thread(target=communicate, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert contexts.current() is NOBODY
