"""Session: configuration -> hooks -> recorder -> writer. The one place that wires them.

Hooks go in as the modules that they watch get imported. Recording starts at the first collective
or optimizer step with an initialised process group, so never in launchers, agents or data-loading
workers.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dsprof import environment
from dsprof.config import COMMAND_PID, FIELDS, OBSERVER, Config, is_switched_on, without_idle
from dsprof.environment import launchers
from dsprof.hooks.patching import forget_imports, when_imported
from dsprof.recording.beside import follow_beside
from dsprof.recording.group_store import number_of_run
from dsprof.recording.header import header_of_training
from dsprof.recording.hook_installer import HookInstaller
from dsprof.recording.interpreter import NO_GIL, has_gil
from dsprof.recording.messages import say, say_failed, say_recorded, say_silent
from dsprof.recording.observer import dismiss
from dsprof.recording.recorder.hot_state import compiled
from dsprof.recording.recorder.pseudonyms import Anonymizer
from dsprof.recording.recorder.recorder import Recorder
from dsprof.recording.recorder.redacted_records import Redaction
from dsprof.recording.recorder.shared_key import SharedKey
from dsprof.recording.this_process import (
    is_command,
    is_exit_skipped,
    is_of_several,
    is_script,
    repeats_parent,
    when_child_ends,
)
from dsprof.recording.trailer import trailer_of, with_writer
from dsprof.trace.dumps.kept_states import keep_states_of_the_dead, remove_stale
from dsprof.trace.dumps.state_file import memory_folders, process_of
from dsprof.trace.host_folders import folder_of
from dsprof.trace.lines import header_of
from dsprof.trace.schema import (
    BECAME,
    EXIT,
    INTERRUPTED,
    NEW_GROUP,
    OF_PROCESS,
    GroupEnd,
    Header,
    HookStatus,
    Note,
    Trailer,
)
from dsprof.trace.scope import clock
from dsprof.trace.window import Window
from dsprof.trace.writing.last_step import LastStep
from dsprof.trace.writing.writer import TraceWriter
from dsprof.trace.writing.writer_input import WriterInput

if TYPE_CHECKING:
    from dsprof.recording.capture.captures import Captures
    from dsprof.recording.watchdog.crash import CrashNotes
    from dsprof.recording.watchdog.thread import Watchdog


_MOST_TRACES = 32
"""A process that recreates its group more often, as between rollouts, continues in the last."""


class Session:
    """One recording, from `enable` to `disable` or the end of the process."""

    def __init__(self, config: Config, is_called: bool = False) -> None:
        """`is_called` says that the program itself asks for it."""
        self._is_called = is_called
        config, self._ignored = without_idle(config)
        self.config = config
        self._folder = _from_here(config.out)
        self._alerts = _from_here(config.alerts) if config.alerts else None
        self.last_step = LastStep()
        self.recorder = Recorder(
            self._arm, self._follow_world, lambda hook: self._hooks.note_failure(hook)
        )
        self._hooks = HookInstaller(config, self.recorder, self._tell_of_hooks)
        self.writer: TraceWriter | None = None
        self._watchdog: Watchdog | None = None
        self._captures: Captures | None = None
        if config.mode == "always":  # the others load nothing for it
            from dsprof.recording.capture.captures import Captures

            self._captures = Captures(config, self.recorder)
        self._crash: CrashNotes | None = None
        self._ended: list[TraceWriter] = []  # of worlds before this one: still writing, or failed
        self._started_ns = 0
        self._world: weakref.ref[Any] | None = (
            None  # the default group, of this process or its parent
        )
        self._traces = 0
        self._rank = 0
        self._world_size = 0
        self._process = ("", 0, 0, 0)  # as the trace names it
        self._started_s = time.time()
        self._key = _process_key()
        self._is_followed = False
        self._has_declined = False

    @property
    def rank(self) -> int:
        """The rank that this process is; 0 before a process group is up."""
        return self._rank

    @property
    def trace_file(self) -> Path | None:
        """The file that is written; None before the first collective."""
        path = self.writer.path if self.writer is not None else None
        return path if path is not None and path.is_file() else None

    def decline(self, config: Config, options: Mapping[str, Any]) -> None:
        """Say once which options of a later call differ, and are ignored."""
        asked = FIELDS if options.get("config") else FIELDS.keys() & options.keys()
        config, _ = without_idle(config)
        differ = (name for name in asked if getattr(config, name) != getattr(self.config, name))
        names = ", ".join(sorted(differ))
        if names and not self._has_declined and os.environ.get("RANK", "0") == "0":
            self._has_declined = True
            why = " (DSPROF=1)" if is_switched_on(os.environ) else ""
            say(f"recording is already on{why}; ignored: {names}")

    # -- hooks --------------------------------------------------------------------------------

    def install(self) -> None:
        """Put hooks in now, or as soon as what they watch is imported. torch must be imported."""
        if self._captures is not None:
            with suppress(ValueError, RuntimeError):  # the first collective tries again: it reports
                self._captures.handle_signal()
        self._hooks.install()
        self.recorder.arm(at_collective=False)  # a step would be half over at the next collective

    def _tell_of_hooks(self, status: list[HookStatus]) -> None:
        if self.writer is not None:
            self.recorder.outbox.define(status)

    # -- recording ----------------------------------------------------------------------------

    def _arm(self) -> bool:
        """Start the writer if a process group is up; called by the recorder."""
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return False
        if self._world is not None and self._world() is dist.group.WORLD:
            return False  # the parent's, from before the fork: this process is no rank in it
        if repeats_parent(dist.get_rank(), dist.get_world_size()):
            self._is_called = False  # the rank says it if nothing was recorded
            self.recorder.stop()
            return False
        # Not first at exit: psutil's import then would change the exit code after Ctrl-C.
        with suppress(ImportError):
            import psutil  # noqa: F401
        if is_exit_skipped():
            when_child_ends(_stop_at_exit)
        self.writer = self._start_writer(dist, self.config.budget_mb * 1_000_000)
        if self._ignored and self._rank == 0:
            say(self._ignored)
        return True

    def _start_writer(self, dist: Any, budget_bytes: int) -> TraceWriter:
        """Begin a trace of the rank that this process is now."""
        from dsprof.hooks.device.memory import MemorySampler
        from dsprof.hooks.wire.groups import backend_of

        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._world = weakref.ref(dist.group.WORLD)
        self._traces += 1
        recorder, config = self.recorder, self.config
        place = self._rank, self._world_size
        header = header_of_training(*place, config, backend_of(), self._key)
        anonymizer = Anonymizer(header.run_key) if config.anonymize else None
        key = SharedKey()
        if not config.anonymize and self._world_size > 1:
            key.agree(dist)
        self._disclose = Redaction(anonymizer, key.digest)
        header = self._disclose(header)
        self._process = process_of(header)
        state = recorder.in_flight.state
        if why := state.open(header, self._disclose, number_of_run(header)):
            recorder.outbox.define(Note(f"this rank keeps no live state: {why}"))
        elif state.path is not None and not config.anonymize:  # it has the number of the user
            header.state_file = state.path.name
        source = WriterInput(
            records=recorder.outbox.records,
            definitions=recorder.outbox.definitions,
            unfinished=recorder.in_flight.unfinished,
            sample_memory=MemorySampler().sample,
            prepare=partial(self._prepare, header, key),
            prepare_late=partial(self._describe_effective_environment, key),
            disclose=self._disclose,
            show_life=lambda: state.beat(recorder.progress.scope),
            last_step=self.last_step,
            warn=say,
            lines_in_c=None if compiled is None else compiled.Lines,
        )
        folder = self._folder
        if self._captures is None:
            window = Window(config.start_step, config.steps, config.every)
            writer = TraceWriter(folder, header, source, window, budget_bytes)
        else:
            from dsprof.trace.rolling.writer import RollingWriter

            self._captures.end_trace()
            out = folder_of(header, folder)
            rolling = RollingWriter(out, header, source, budget_bytes, before=self.writer)
            self._captures.begin(header, folder, rolling, self._disclose)
            writer = rolling
        recorder.outbox.define(self._hooks.status)
        writer.start()
        try:
            self._watch(header)
        except Exception as error:  # such as that of a system that grants no more threads
            recorder.fail("watchdog", error)
        return writer

    def _watch(self, header: Header) -> None:
        """Watch whether training goes on, as this rank."""
        from dsprof.hooks.device.memory import MemorySampler
        from dsprof.recording.watchdog.crash import CrashNotes
        from dsprof.recording.watchdog.thread import Watchdog

        self._crash = self._crash or CrashNotes(self.recorder.outbox.define)
        self._started_ns = header.started_monotonic_ns
        if self._watchdog is not None:
            self._watchdog.stop()
        if self.config.hang_after:
            self._watchdog = Watchdog(
                self.recorder,
                header,
                self.config,
                self._folder,
                self._disclose,
                MemorySampler().sample,
                say,
            )
            self._watchdog.start()

    def _follow_world(self, is_left: bool) -> None:
        """Continue in a new trace if the default process group was recreated."""
        dist, old = sys.modules["torch.distributed"], self.writer
        if old is None:
            return
        if not dist.is_initialized():
            self._note_group_end(old, clock() * is_left)
            return
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if rank < 0 or (self._world is not None and self._world() is dist.group.WORLD):
            return
        self._note_group_end(old, 0)
        is_same = (rank, world_size) == (self._rank, self._world_size)
        if is_same and self._traces >= _MOST_TRACES:
            self._world = weakref.ref(dist.group.WORLD)
            return
        trailer = self._trailer(NEW_GROUP if is_same else f"{BECAME} {rank} of {world_size}")
        left = self.recorder.begin_again()
        old.end(lambda: with_writer(trailer, old), left)
        going_on = [one for one in self._ended if not one.is_done or one.error is not None]
        self._ended = [*going_on, old]
        self.writer = self._start_writer(dist, old.budget_left_bytes)

    def _note_group_end(self, writer: TraceWriter, time_ns: int) -> None:
        """Say when the program left the group, or by 0 that it has another: a kill may follow."""
        self.recorder.in_flight.state.leave(time_ns)
        writer.leave(GroupEnd(time_ns))

    def _prepare(self, header: Header, key: SharedKey) -> list[Any]:
        """Describe the environment, and let a process follow the trace that has begun.

        States that others left behind a day ago go now: reading them takes milliseconds.
        """
        for folder in memory_folders():
            remove_stale(folder)
        key.wait()
        self._environment = environment.snapshot(os.environ, key.digest)
        if self._is_followed:
            return [self._environment]
        self._is_followed = True
        notes = follow_beside(header, self._folder, self.config.metrics_port, self._alerts)
        return [self._environment, *notes]

    def _describe_effective_environment(self, key: SharedKey) -> list[Any]:
        """Ask again after the first step: NCCL has read its configuration files by then."""
        loaded = None if compiled is None else compiled.loaded_libraries
        found = environment.after_first_step(self._environment, key.digest, loaded)
        return [] if found is None else [found]

    # -- end ----------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Take all hooks out and finish the trace."""
        forget_imports()
        self._end_helpers(is_exit=reason in (EXIT, INTERRUPTED))
        self.recorder.stop()
        left = self._hooks.remove()
        if self.writer is None:
            if self.recorder.failures:
                say_failed(self.recorder.failures)
            elif reason == EXIT:
                self._report_silence()
            return
        for patch in left:
            text = f"{patch.owner.__name__}.{patch.name} is wrapped by another tool: left inert"
            self.recorder.outbox.define(Note(text))
        writer, in_flight = self.writer, self.recorder.in_flight.end_trace()
        trailer = self._trailer(reason)
        writer.close(lambda: with_writer(trailer, writer), in_flight)
        for ended in self._ended:
            ended.join()
        if writer.has_trailer:
            self.recorder.in_flight.state.close()
            run_key = launchers.run_key(os.environ, self._world_size)
            with suppress(OSError):
                keep_states_of_the_dead(run_key, self._folder)
        with suppress(OSError):
            self._report()

    def _end_helpers(self, *, is_exit: bool) -> None:
        """End what is beside the recorder; if a part cannot end, the trace is finished and says so.

        A program may have used up its descriptors, for example.
        """
        ends: dict[str, Callable[[], object]] = {}
        if self._watchdog is not None:
            ends["watchdog"] = self._watchdog.stop
        if self._captures is not None:
            ends |= self._captures.ends(is_exit=is_exit)
        if self._crash is not None:
            ends["crash"] = self._crash.close
        for name, end in ends.items():
            try:
                end()
            except Exception as error:
                self.recorder.fail(name, error)

    def continue_in_child(self) -> None:
        """Go on in a forked child, which may become a rank; stop if the parent is one.

        The threads of a recording that has begun do not live on there.
        """
        self._is_called = False  # the parent says it if nothing was recorded
        if self._traces:
            self._abandon()
            return
        self._key = _process_key()
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            self._world = weakref.ref(dist.group.WORLD)

    def _abandon(self) -> None:
        self.recorder.abandon()
        if self._captures is not None:
            self._captures.abandon()
        if self.writer is not None:
            self.writer.abandon()
        self.writer = None

    def _trailer(self, reason: str) -> Trailer:
        return trailer_of(self.recorder, self._crash, self._started_ns, reason)

    def _report(self) -> None:
        """Say once, on rank 0, where the trace is and what to type next."""
        writer = self.writer
        assert writer is not None
        if writer.error is not None:
            return
        found = header_of(writer.path)
        if found is None or process_of(found) != self._process:
            say(
                f"the trace {writer.path} was moved, removed or cut while it was written; leave it "
                "in place until the job ends"
            )
        elif self._rank == 0:
            say_recorded(writer, self.recorder.progress.steps, self._folder, self.config.out)
            for name, why in self._hooks.losses().items():
                say(f"hook {name}: {why}")

    def _report_silence(self) -> None:
        """Say so if a program has not communicated, nor its children.

        DSPROF=1 reaches launchers and tools, too, which are not to communicate: of these no word.
        """
        is_of_user = is_command() or (self._is_called and not is_of_several())
        if not is_of_user or hasattr(sys, "last_type"):
            return
        with suppress(OSError):
            say_silent(self._folder, self._started_s, has_missed=self.recorder.has_missed)


def _from_here(path: str) -> Path:
    """Return a path that stays the same if the program changes its folder."""
    with suppress(OSError):  # the program's has been removed
        return Path(path).absolute()
    return Path(path)


def _process_key() -> str:
    return f"{OF_PROCESS}{os.urandom(6).hex()}"


_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})

_current: Session | None = None


def current() -> Session | None:
    """Return the session of this process, if one is on."""
    return _current


def start(
    config: Config, options: Mapping[str, Any] = _NO_OPTIONS, torch_is_complete: bool = False
) -> None:
    """Begin a session; does nothing if one is on already, or on a Python without the GIL.

    `options` are those of the call. `torch_is_complete` is for the caller that runs in the
    last lines of torch's own import.
    """
    global _current
    if _current is not None:
        _current.decline(config, options)
        return
    if not has_gil():
        say(f"not recording: {NO_GIL}")
        return
    if torch_is_complete and is_script() and not is_of_several():
        os.environ.setdefault(COMMAND_PID, str(os.getpid()))  # what it starts itself stays silent
    if is_command():  # it says itself at its end that nothing was recorded
        dismiss(os.environ.get(OBSERVER, ""))
    _current = Session(config, is_called=not torch_is_complete)
    install = _guarded(_current.install)
    if torch_is_complete:
        install()
    else:
        when_imported("torch", install)


def stop(reason: str = "disable") -> None:
    """End the session, if one is on."""
    global _current
    session, _current = _current, None
    if session is not None:
        session.close(reason)


def metrics() -> dict[str, float]:
    """Return the figures of the last step of this rank, and add up those to come."""
    if _current is None:
        return {}
    _current.last_step.is_asked = True
    return dict(_current.last_step.figures)


def _guarded(install: Callable[[], None]) -> Callable[[], None]:
    """Keep a failure of ours from failing the import of torch."""

    def guarded() -> None:
        try:
            install()
        except Exception as error:
            say(f"not recording: {type(error).__name__}: {error}")

    return guarded


def _after_fork() -> None:
    global _current
    if _current is not None:
        _current.continue_in_child()
        if _current.recorder.stopped:
            _current = None


def _stop_at_exit() -> None:
    kind = getattr(sys, "last_type", None)
    is_interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
    stop(INTERRUPTED if is_interrupted and not hasattr(sys, "ps1") else EXIT)


atexit.register(_stop_at_exit)
os.register_at_fork(after_in_child=_after_fork)
