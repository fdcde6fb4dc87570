"""Installs hooks when the modules that they watch are imported, and removes them at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dsprof.config import Config
from dsprof.errors import message_of
from dsprof.hooks.patching import Patch, PatchSet, is_importable, parents, when_imported
from dsprof.recording.recorder.interrupts import raise_if_of_signal_handler
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import HookStatus

if TYPE_CHECKING:
    from dsprof.hooks.base import Hook


class HookInstaller:
    """The hooks of one session, and the status of each in the trace."""

    def __init__(
        self, config: Config, recorder: Recorder, tell: Callable[[list[HookStatus]], None]
    ) -> None:
        """`tell` is called with the status of all hooks whenever one changes."""
        self._config, self._recorder, self._tell = config, recorder, tell
        self._installed: list[Hook] = []
        self._patches = PatchSet()
        self._status: dict[str, HookStatus] = {}

    @property
    def status(self) -> list[HookStatus]:
        """The status of all hooks."""
        return list(self._status.values())

    def install(self) -> None:
        """Install hooks now, or once the modules that they watch are imported.

        torch must be imported.
        """
        from dsprof.hooks.registry import FALLBACKS, create_hooks

        self._fallbacks = FALLBACKS
        for hook in create_hooks(self._config, self._recorder):
            self._install(hook)

    def remove(self) -> list[Patch]:
        """Remove all hooks; return the patches that stay, inert: another tool has wrapped them."""
        left = self._patches.revert()
        for hook in dict.fromkeys(self._installed):
            self._take_out(hook)
        return left

    def note_failure(self, hook: str) -> None:
        """Say in the trace which hook broke: a run that gets killed writes no trailer."""
        why = self._recorder.failures[hook]
        self._put_status(f"{hook}/failure", HookStatus(hook, installed=True, why=why))

    def losses(self) -> dict[str, str]:
        """Return why hooks record less than they should, by the name of the hook."""
        off: dict[str, str] = {}
        for status in self._status.values():
            said = "; ".join(filter(None, (off.get(status.name), status.why, *status.lost)))
            if said:
                off[status.name] = said
        return off

    def _install(self, hook: Hook) -> None:
        for module in hook.modules():
            self._set_status(hook, HookStatus(hook.name, module))
            when_imported(module, partial(self._install_module, hook, module))
            for package, inner in parents(module):
                when_imported(package, partial(self._look_for, hook, module, inner))

    def _look_for(self, hook: Hook, module: str, inner: str) -> None:
        """Say what is lost if this release lacks the module, or a package above it."""
        if self._recorder.stopped or is_importable(inner):
            return
        try:
            hook.losses(module)
        except BaseException as error:  # code of plugins: a panic of Rust is no Exception
            raise_if_of_signal_handler(error)
            self._set_status(hook, HookStatus(hook.name, module, why=message_of(error)))

    def _install_module(self, hook: Hook, module: str) -> None:
        if self._recorder.stopped:
            return
        try:
            lost = hook.losses(module)  # first: a hook that does not fit changes nothing
            self._put_in(hook, module)
        except BaseException as error:
            raise_if_of_signal_handler(error)
            self._set_status(hook, HookStatus(hook.name, module, why=message_of(error)))
            fallback = self._fallbacks.get(type(hook))
            if fallback is not None:
                self._install(fallback(self._recorder))
        else:
            self._set_status(hook, HookStatus(hook.name, module, installed=True, lost=lost))

    def _put_in(self, hook: Hook, module: str) -> None:
        """Install all of a hook for one module, or nothing."""
        self._installed.append(hook)  # first: a half-installed hook has to be removed, too
        try:
            hook.install(module)
            self._patches.apply(hook.patches(module))
        except BaseException:
            self._take_out(hook)
            raise

    def _take_out(self, hook: Hook) -> None:
        """Undo what a hook has installed."""
        try:
            hook.uninstall()
        except BaseException as error:
            self._recorder.fail(hook.name, error)

    def _set_status(self, hook: Hook, status: HookStatus) -> None:
        self._put_status(f"{type(hook).__name__}/{status.module}", status)

    def _put_status(self, key: str, status: HookStatus) -> None:
        self._status[key] = status
        self._tell(self.status)
