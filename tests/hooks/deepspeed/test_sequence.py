"""The group of an attention that exchanges heads for sequence."""

from __future__ import annotations

from types import SimpleNamespace

from dsprof.hooks.deepspeed.sequence import DeepSpeedSequenceHook
from dsprof.hooks.wire.groups import Groups
from dsprof.recording.recorder.recorder import Recorder


class Group:
    pass


def test_the_role_is_known_before_the_first_collective() -> None:
    recorder, group = Recorder(lambda: True), Group()
    hook = DeepSpeedSequenceHook(recorder)
    roles: list[str | None] = []
    forward = hook.wrap(
        hook.targets[0], lambda self, x: roles.append(recorder.shared(Groups).roles.get(group))
    )
    forward(SimpleNamespace(spg=group), 1)
    assert roles == ["sequence"]


def test_an_attention_of_another_release_makes_no_harm() -> None:
    recorder = Recorder(lambda: True)
    hook = DeepSpeedSequenceHook(recorder)
    forward = hook.wrap(hook.targets[0], lambda self, x: x)
    assert forward(SimpleNamespace(), 7) == 7
    assert "deepspeed.sequence" in recorder.failures
