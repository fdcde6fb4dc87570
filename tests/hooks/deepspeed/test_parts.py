"""What an engine does between its phases, on a stand-in."""

from __future__ import annotations

import pytest

from dsprof.hooks.deepspeed.parts import DeepSpeedPartsHook
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Phase
from tests.handed_over import handed_over


@pytest.mark.parametrize("name", ["save_checkpoint", "offload_states"])
def test_a_call_is_a_span_as_of_annotate(name: str) -> None:
    recorder = Recorder(lambda: True)
    assert recorder.arm()
    hook = DeepSpeedPartsHook(recorder)
    target = next(target for target in hook.targets if target.name == name)
    assert hook.wrap(target, lambda engine, path: path)(object(), "here") == "here"
    (span,) = handed_over(recorder)
    assert isinstance(span, Phase)
    assert (span.name, span.is_annotation) == (name, True)
    assert recorder.failures == {}
