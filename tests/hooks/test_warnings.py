"""What torch warns of under a wrapper, filters of the user's still find by its module."""

from __future__ import annotations

import warnings

import pytest

from dsprof.hooks.base import Hook, nothing
from dsprof.recording.recorder.recorder import Recorder


def test_a_warning_names_the_caller_and_no_wrapper() -> None:
    def original() -> None:
        warnings.warn("deprecated", stacklevel=2)

    recorder = Recorder(lambda: True)
    assert recorder.arm()
    hook = Hook(recorder)
    wrapped = hook.around(hook.around(original, nothing, nothing), nothing, nothing)
    with pytest.warns(UserWarning, match="deprecated") as said:
        wrapped()
    assert said[0].filename == __file__
