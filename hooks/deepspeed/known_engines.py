"""Engines of DeepSpeed, of which several hooks learn."""

from __future__ import annotations

from typing import Any

from dsprof.recording.recorder.listeners import Listeners
from dsprof.recording.recorder.recorder import Recorder


class KnownEngines(Listeners[[Any, int]]):
    """Told of each engine when it is met first, and its number, in the thread that trains it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder.fail)
