"""Before torch 2.7 what a hidden hook calls is not hidden with it: each function has to be."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from types import CodeType, FunctionType

import pytest
import torch._dynamo.eval_frame as eval_frame

from dsprof.hooks.base import Hook, hide_from_dynamo
from dsprof.hooks.torch import ddp
from dsprof.hooks.torch.ddp import DDPHook, _numbers
from dsprof.recording.recorder.outbox import Outbox
from tests.beside import ROOT


def hidden_on_old_torch(monkeypatch: pytest.MonkeyPatch, and_calls: bool) -> set[CodeType]:
    hidden: set[CodeType] = set()
    monkeypatch.delattr(eval_frame, "FrameExecStrategy")
    monkeypatch.setattr(eval_frame, "skip_code", hidden.add)
    hide_from_dynamo(DDPHook._end, and_calls=and_calls)
    return hidden


def test_what_a_hook_calls_is_hidden_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = hidden_on_old_torch(monkeypatch, and_calls=True)
    functions = (DDPHook._end, DDPHook._describe, _numbers, Outbox.define)
    assert {function.__code__ for function in functions} <= hidden


def test_what_is_inside_a_function_is_hidden_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    [method] = [code for code in Hook.around.__code__.co_consts if isinstance(code, CodeType)]
    assert method in hidden_on_old_torch(monkeypatch, and_calls=True)


def test_nothing_of_others_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = hidden_on_old_torch(monkeypatch, and_calls=True)
    own = tuple(f"{ROOT / folder}/" for folder in ("dsprof", "hooks", "reports"))
    made_by_dataclasses = ("<string>", dataclasses.__file__)
    assert all(code.co_filename.startswith((*own, *made_by_dataclasses)) for code in hidden)


def test_context_managers_and_wrappers_are_told_from_what_they_are_made_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opens = contextlib.contextmanager(_numbers)
    wraps = functools.wraps(list.append)(FunctionType(_numbers.__code__, vars(ddp)))
    monkeypatch.setattr(ddp, "opens", opens, raising=False)
    monkeypatch.setattr(ddp, "wraps", wraps, raising=False)
    hidden = hidden_on_old_torch(monkeypatch, and_calls=True)
    assert _numbers.__code__ in hidden
    assert opens.__code__ not in hidden


def test_without_its_calls_a_function_is_hidden_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hidden_on_old_torch(monkeypatch, and_calls=False) == {DDPHook._end.__code__}
