"""Hooks: named targets, and how to wrap them."""

from __future__ import annotations

import ctypes
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, cast

import torch

from dsprof.hooks.own_code import own_codes
from dsprof.hooks.patching import Patch, when_imported
from dsprof.hooks.releases import is_before, release_of
from dsprof.recording.recorder.hot_state import Switch, compiled
from dsprof.recording.recorder.recorder import Recorder

_FAILURES = 3
"""One odd call must not blind a hook; a library that has changed fails at every call."""

_PASSED_BY_WARNINGS = f"{__file__}#importlib._bootstrap"
"""The file of wrappers: `warnings` counts no frame with both names for its stacklevel.

So a warning of the original names its caller, and not dsprof.
"""

Before = Callable[..., Any]
After = Callable[[Any], None]


@functools.cache
def _renamed(code: CodeType) -> CodeType:
    """Return the code of wrappers under that name: one for all, so that they share its caches."""
    return code.replace(co_filename=_PASSED_BY_WARNINGS)


@dataclass(frozen=True, slots=True)
class Target:
    """One attribute that a hook replaces; as data, so that one test covers all hooks."""

    module: str
    owner: str  # a class in the module, "" for the module itself
    name: str
    why: str
    carries: str = ""  # what is not recorded without it, in the plural; "": all of the hook
    since: str = ""  # the release that brought what it is for; an older one lacks nothing
    after: str = ""  # the module whose import makes it ready, if not its own

    @property
    def needs(self) -> str:
        """The module that must have been imported before the attribute is there."""
        return self.after or self.module

    def resolve(self) -> Any:
        """Return what owns the attribute; the module must be imported.

        Modules are found by name, never by attribute path: `deepspeed.comm.torch` as an attribute
        is the top-level torch.

        Raises:
            AttributeError: this release has no such class or attribute.
        """
        module = importlib.import_module(self.module)
        owner = getattr(module, self.owner) if self.owner else module
        getattr(owner, self.name)
        return owner

    def is_there(self) -> bool:
        """Tell whether this release has the attribute."""
        try:
            self.resolve()
        except (AttributeError, ModuleNotFoundError):
            return False
        return True

    def is_missing(self) -> bool:
        """Tell whether this release lacks the attribute, although it has what that is for."""
        return not (is_before(self.library, self.since) or self.is_there())

    @property
    def library(self) -> str:
        """The package that the module is of."""
        return self.module.partition(".")[0]


class Hook:
    """Watches one library; installed per module as the modules get imported."""

    name: str
    targets: tuple[Target, ...] = ()
    order: int = 100  # of installing; of two hooks with the same target the higher runs first

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.failures = 0
        self.switch = Switch()

    @property
    def broken(self) -> bool:
        """Whether it has failed too often, and is inert."""
        return self.switch.broken

    def modules(self) -> tuple[str, ...]:
        """Return the modules that have targets, each once."""
        return tuple(dict.fromkeys(target.needs for target in self.targets))

    def patches(self, module: str) -> list[Patch]:
        """Return the patches for the targets in `module`.

        Raises:
            AttributeError: a target that carries all of the hook is missing.
            TypeError: `wrap` returned what cannot replace the target.
        """
        wanted = [target for target in self.targets if target.needs == module]
        there = [target for target in wanted if not target.carries or target.is_there()]
        patches = [Patch(t.resolve(), t.name, functools.partial(self.wrap, t)) for t in there]
        for patch in patches:
            _check(patch)
        return patches

    def losses(self, module: str) -> list[str]:
        """Return what is not recorded because this release lacks targets in `module`.

        Of targets that carry the same thing one is enough.

        Raises:
            AttributeError: the hook can record nothing: it lacks all targets, or one it needs.
        """
        wanted = [target for target in self.targets if target.needs == module]
        missing = [target for target in wanted if target.is_missing()]
        there = {target.carries for target in wanted if target not in missing}
        for target in missing:
            if not target.carries:
                target.resolve()  # raises
        lost: dict[str, list[Target]] = {}
        for target in missing:
            if target.carries not in there:
                lost.setdefault(target.carries, []).append(target)
        said = [_loss(what, targets) for what, targets in lost.items()]
        if missing and not there:
            raise AttributeError("; ".join(said))
        return said

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what replaces `original`: same signature, result, exceptions."""
        raise NotImplementedError(f"{self.name} has targets and must wrap them")

    def install(self, module: str) -> None:
        """Do what is needed beside patches, once `module` is imported."""

    def uninstall(self) -> None:
        """Undo `install`."""

    def around(
        self,
        original: Callable[..., Any],
        before: Before,
        after: After,
        *,
        also_if_raised: bool = True,
    ) -> Callable[..., Any]:
        """Wrap a method: `before` gets its arguments and gives `after` a token, both guarded.

        Neither runs while nothing is recorded or while torch.compile traces.
        """
        hook, hot, is_compiling = self, self.recorder.hot, torch.compiler.is_dynamo_compiling
        switch = self.switch

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not hot.recording or switch.broken:
                return original(*args, **kwargs)
            try:
                token = before(*args, **kwargs)
            except BaseException as error:  # code of plugins: a panic of Rust is no Exception
                hook.fail(error)
                return original(*args, **kwargs)
            ended = also_if_raised
            try:
                result = original(*args, **kwargs)
                ended = True
                return result
            finally:
                try:
                    if ended:
                        after(token)
                except BaseException as error:
                    hook.fail(error)

        function = _function(method)
        function.__code__ = _renamed(function.__code__)
        hide_from_dynamo(method)
        hide_from_dynamo(_function(before), _function(after), and_calls=True)
        return method

    def in_c(
        self,
        kind: str,
        original: Callable[..., Any],
        in_python: Callable[..., Any],
        held: Sequence[Any],
        numbers: Sequence[int] = (),
    ) -> Callable[..., Any]:
        """Return what wraps a method of a class in C, or `in_python`, which does the same.

        `kind` is a name in `kinds` of c/wrapper.c; the file with its function says what it wants
        in `held` and `numbers`. It leaves to `in_python` what is not the usual case.
        """
        if compiled is None:
            return in_python
        around = (self.recorder.hot, self.switch, original, in_python, self.fail)
        wrapper = compiled.Wrapper(kind, *around, tuple(held), tuple(numbers))
        return cast(Callable[..., Any], _bind(wrapper))

    def fail(self, error: BaseException) -> None:
        """Note an inner failure; after the third the hook is inert. The run goes on in any case.

        What a signal handler of the user or another thread raised meanwhile is none, and is raised
        again.
        """
        self.recorder.fail(self.name, error)
        self.failures += 1
        self.switch.broken = self.failures >= _FAILURES


def _check(patch: Patch) -> None:
    """Refuse a wrapper with which no call would succeed.

    Raises:
        TypeError: it is no function where the original is one, or binds otherwise.
    """
    name, wrapper, original = patch.name, patch.wrapper, getattr(patch.owner, patch.name)
    kept, unbound = inspect.getattr_static(patch.owner, name), (staticmethod, classmethod)
    if isinstance(kept, unbound) and not isinstance(wrapper, unbound):
        raise TypeError(f"wrap must return a staticmethod for {name}, a {type(kept).__name__}")
    function = wrapper.__func__ if isinstance(wrapper, unbound) else wrapper
    if any(is_kind(original) != is_kind(function) for is_kind in (callable, inspect.isclass)):
        wanted, got = type(original).__name__, type(wrapper).__name__
        raise TypeError(f"wrap must return a {wanted} for {name}, and returned a {got}")


def _bind(wrapper: Any) -> Any:
    """Return what binds an object that is no function to an instance, as a method of a class."""
    make = ctypes.pythonapi.PyInstanceMethod_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.py_object]
    return make(wrapper)


def _loss(what: str, targets: Sequence[Target]) -> str:
    library = targets[0].library
    names = " or ".join(".".join(filter(None, (each.owner, each.name))) for each in targets)
    return f"{what} are not recorded: {library} {release_of(library)} has no {names}"


def nothing(*args: Any, **kwargs: Any) -> None:
    """The half of `around` that a hook has no use for."""


def _function(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function behind a method, or a partial call."""
    call = call.func if isinstance(call, functools.partial) else call
    return getattr(call, "__func__", call)


def hide_from_dynamo(*functions: Callable[..., Any], and_calls: bool = False) -> None:
    """Keep torch.compile from tracing into a hook, which would break the graph.

    Dynamo looks at each frame on its own: what a hidden function calls has to be hidden, too, or
    is with `and_calls`. Before torch 2.7 that hides everything of dsprof that is imported by then.
    """

    def skip() -> None:
        eval_frame = sys.modules["torch._dynamo.eval_frame"]
        # Those in C, such as a list's append, have none; Dynamo does not trace them.
        codes = [function.__code__ for function in functions if hasattr(function, "__code__")]
        if and_calls and hasattr(eval_frame, "FrameExecStrategy"):
            skipped = eval_frame.FrameAction.SKIP
            strategy = eval_frame.FrameExecStrategy(skipped, skipped)
            for code in codes:
                eval_frame.set_code_exec_strategy(code, strategy)
        else:
            for code in (*codes, *(own_codes() if and_calls else ())):
                eval_frame.skip_code(code)

    when_imported("torch._dynamo.eval_frame", skip)
