"""Spans of the program that it names itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from threading import get_ident
from typing import Any, TypeVar, cast

from dsprof.recording import session
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.scope import Scope, clock

F = TypeVar("F", bound=Callable[..., Any])


class Annotation:
    """Records the time inside as a span, if a recording is on; used again, it is another span."""

    __slots__ = ("_begun", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun: dict[int, list[tuple[Recorder, Scope, int] | None]] = {}  # by thread

    def __enter__(self) -> None:
        begun, on = None, session.current()
        if on is not None and on.recorder.recording:
            begun = on.recorder, on.recorder.progress.scope, clock()
        self._begun.setdefault(get_ident(), []).append(begun)

    def __exit__(self, *error: object) -> None:
        stack = self._begun.get(get_ident())
        begun = stack.pop() if stack else None  # it may be left in another thread
        if begun is not None:
            recorder, scope, start_ns = begun
            recorder.annotate(str(self._name), scope, start_ns)

    def __call__(self, function: F) -> F:
        """Return `function` with a span of each call, and of each time that a generator runs.

        An asynchronous generator is returned as it is.
        """
        name = self._name
        if inspect.isasyncgenfunction(function):
            return function
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call(*args: Any, **kwargs: Any) -> Any:
                with Annotation(name):
                    return await function(*args, **kwargs)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                return (yield from _Runs(name, function(*args, **kwargs)))

        else:

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                with Annotation(name):
                    return function(*args, **kwargs)

        return cast(F, call)


class _Runs(Generator[Any, Any, Any]):
    """A generator with a span of each time that it runs: between them runs who asks it."""

    def __init__(self, name: str, generator: Generator[Any, Any, Any]) -> None:
        self._name, self._generator = name, generator

    def send(self, value: Any) -> Any:
        with Annotation(self._name):
            return self._generator.send(value)

    def throw(self, *error: Any) -> Any:
        with Annotation(self._name):
            return self._generator.throw(*error)
