"""What is special about kernels in C++; all else is tested with the kernels in Python."""

from __future__ import annotations

import functools
import gc
import os
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from dsprof.errors import DsprofError
from dsprof.hooks.patching import forget_imports
from dsprof.hooks.wire import native
from dsprof.hooks.wire.dispatcher import DispatcherHook
from dsprof.hooks.wire.functional import FunctionalHook
from dsprof.hooks.wire.native import NativeDispatcherHook, NativeFunctionalHook, NativeHook
from dsprof.hooks.wire.native_build import verify
from dsprof.hooks.wire.operations import WireOp
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.reader import read_trace
from tests.factories.hostile import owned_by_another
from tests.forked import python
from tests.handed_over import handed_over
from tests.hooks.conftest import IN_DISPATCHER, WITH_WAITS

Install = Callable[..., Recorder]

PROGRAM = """
import sys, torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.testing._internal.distributed.fake_pg import FakeStore
import dsprof

dsprof.enable(out=sys.argv[1], interception="native")
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
functional.wait_tensor(functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD))
"""


def run(code: str, *arguments: Path, **variables: str) -> None:
    done = python(code, *arguments, **variables)
    assert done.returncode == 0, done.stderr


def recorded(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the operations on record, and which hooks failed, with the reason."""
    (file,) = folder.glob("*.rank00000.json")
    trace = read_trace(file)
    assert trace.trailer is not None
    assert all(hook.installed for hook in trace.hooks if hook.name in ("c10d", "functional"))
    collectives = trace.collectives
    ops = [collectives.words[number] for number in collectives.op]
    return ops, trace.trailer.failed_hooks


def test_what_cpp_issues_is_on_record(tmp_path: Path) -> None:
    run(PROGRAM, tmp_path)
    assert recorded(tmp_path) == (["all_reduce"], {})


def test_without_its_kernels_those_in_python_stand_in(tmp_path: Path) -> None:
    nowhere = tmp_path / "nothing"
    run(PROGRAM, tmp_path / "out", TORCH_EXTENSIONS_DIR=str(nowhere))
    ops, failed = recorded(tmp_path / "out")
    assert ops == ["all_reduce"]
    assert list(failed) == ["native"]
    why = f"RuntimeError: no kernels are built for torch {torch.__version__} ({nowhere}/dsprof_"
    assert failed["native"].startswith(why)
    assert failed["native"].endswith("run dsprof build")


AUTOMATIC = PROGRAM.replace('interception="native"', 'interception="auto"')


def test_kernels_that_nobody_asked_for_are_not_missed(tmp_path: Path) -> None:
    run(AUTOMATIC, tmp_path / "out", TORCH_EXTENSIONS_DIR=str(tmp_path / "nothing"))
    assert recorded(tmp_path / "out") == (["all_reduce"], {})


def test_kernels_that_are_there_and_cannot_be_loaded_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    native.kernels_path().write_bytes(b"\x7fELF" + native.seal(b"\x7fELF"))
    run(AUTOMATIC, tmp_path / "out")
    ops, failed = recorded(tmp_path / "out")
    assert ops == ["all_reduce"]
    assert failed["native"].endswith("kernels in Python are used; run dsprof build")


def test_a_user_without_a_home_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(native, "kernels_path", nowhere)
    assert not native.has_kernels("auto")
    with pytest.raises(RuntimeError, match="no home"):
        native.has_kernels("native")


def test_the_first_functional_collective_is_noticed_and_no_other(install: Install) -> None:
    install(NativeDispatcherHook, NativeFunctionalHook)
    kernels, operation = native.load_kernels(), ("_c10d_functional", "all_reduce")
    watch = functools.partial(kernels.watch_use, *operation, print, print, print)
    with pytest.raises(RuntimeError, match="is watched already"):
        watch()
    functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    watch()
    kernels.unwatch(*operation, print)


def test_a_library_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "odd.so"
    path.write_bytes(b"\x7fELF" + native.seal(b"\x7fELF"))
    monkeypatch.setattr(native, "kernels_path", lambda: path)
    with pytest.raises(RuntimeError, match=f"{path}: .* are used; run dsprof build"):
        native.load_kernels()


def test_a_library_that_was_cut_is_not_loaded(tmp_path: Path) -> None:
    """To load one, which a full disk or a copy may leave, ends the process by SIGBUS."""
    whole = native.kernels_path()
    cut = tmp_path / whole.name
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    run(AUTOMATIC, tmp_path / "out", TORCH_EXTENSIONS_DIR=str(tmp_path))
    ops, failed = recorded(tmp_path / "out")
    assert ops == ["all_reduce"]
    assert failed["native"].startswith(f"RuntimeError: {cut} is truncated or changed")


def test_a_library_that_was_changed_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(native.kernels_path().read_bytes())
    data[len(data) // 2] ^= 1
    path = tmp_path / "changed.so"
    path.write_bytes(data)
    monkeypatch.setattr(native, "kernels_path", lambda: path)
    with pytest.raises(RuntimeError, match="is truncated or changed"):
        native.load_kernels()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_library_that_another_user_planted_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "planted.so"
    path.write_bytes(native.kernels_path().read_bytes())
    owned_by_another(path)
    monkeypatch.setattr(native, "kernels_path", lambda: path)
    with pytest.raises(
        RuntimeError, match=r"planted\.so belongs to another user, kernels in Python"
    ):
        native.load_kernels()


def test_a_signal_as_kernels_go_in_leaves_none_watched(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, left = native.load_kernels(), 3

    def watch_collective(*given: Any) -> None:
        nonlocal left
        kernels.watch_collective(*given)
        left -= 1
        if not left:
            raise KeyboardInterrupt

    odd = SimpleNamespace(watch_collective=watch_collective, unwatch=kernels.unwatch)
    hook = NativeHook(Recorder(lambda: True))
    monkeypatch.setattr(native, "load_kernels", lambda: odd)
    with pytest.raises(KeyboardInterrupt):
        hook.install("torch.distributed")
    monkeypatch.undo()
    recorder = install(NativeHook)
    dist.all_reduce(torch.ones(4))
    assert [record.op for record in handed_over(recorder)] == ["all_reduce"]


def test_who_stops_watching_late_leaves_others_alone(install: Install) -> None:
    """A thread may be at it still when the next recording begins."""
    first = NativeDispatcherHook(Recorder(lambda: True))
    first.install("torch.distributed")
    watched = first._library
    first.uninstall()
    recorder = install(NativeDispatcherHook)
    watched._destroy()
    dist.all_reduce(torch.ones(4))
    assert [record.op for record in handed_over(recorder)] == ["all_reduce"]


@pytest.mark.parametrize("kinds", WITH_WAITS)
def test_what_fails_as_the_first_one_is_noticed_lets_it_pass(
    install: Install, kinds: tuple[type[FunctionalHook], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(hook: FunctionalHook) -> None:
        raise IndexError("on purpose")

    monkeypatch.setattr(FunctionalHook, "_begin", broken)
    recorder = install(*kinds)
    for _ in range(5):
        issued = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
        assert functional.wait_tensor(issued).tolist() == [1.0] * 4
    assert recorder.failures == {"functional": "IndexError: on purpose"}


def test_a_process_may_end_with_kernels_that_are_watched() -> None:
    run(
        "import torch\n"
        "from dsprof.hooks.wire.native import NativeDispatcherHook\n"
        "from dsprof.recording.recorder.recorder import Recorder\n"
        "hook = NativeDispatcherHook(Recorder(lambda: True))\n"
        "hook.install('torch.distributed')\n"
        "torch.kept_for_good = hook"
    )


@pytest.mark.parametrize("kind", IN_DISPATCHER)
def test_what_a_signal_handler_raises_is_the_callers(install: Install, kind: type) -> None:
    recorder = install(kind)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    works = [dist.all_reduce(torch.ones(4), async_op=True)]
    recorder.in_flight.poll = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        dist.all_reduce(torch.ones(4))
    del recorder.in_flight.poll
    works.append(dist.all_reduce(torch.ones(4), async_op=True))
    assert recorder.failures == {}
    assert None not in works


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", IN_DISPATCHER)
def test_an_error_of_the_backend_stays_what_it_is(alone: None, kind: type) -> None:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 5, 0

    def get_from_nobody() -> tuple[type, str]:
        with pytest.raises(Exception, match="invalid root rank") as raised:
            dist.group.WORLD.broadcast([torch.ones(4)], options)
        return raised.type, str(raised.value)

    bare = get_from_nobody()
    recorder = Recorder(lambda: True)
    hook = kind(recorder)
    hook.install("torch.distributed")
    hooked = get_from_nobody()
    hook.uninstall()
    assert hooked == bare
    assert recorder.recording
    assert recorder.in_flight.unfinished() == handed_over(recorder) == []


@contextmanager
def held(hold: Callable[[], None]) -> Iterator[None]:
    """Have all-reduces call `hold`, where torch hands them to the backend."""

    def kernel(tensors: list[torch.Tensor], *_: Any) -> Any:
        hold()
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        return tensors, backend.allreduce(tensors).boxed()

    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it overrides torch's own
        library.impl("allreduce_", kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()


def test_kernels_may_go_away_while_a_call_blocks(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, notes = NativeDispatcherHook._callbacks, []

    def callbacks(hook: NativeDispatcherHook, op: WireOp) -> Any:
        begin, noted = plain(hook, op)
        notes.append(weakref.ref(noted))
        return begin, noted

    monkeypatch.setattr(NativeDispatcherHook, "_callbacks", callbacks)
    recorder = Recorder(lambda: True)
    hook = NativeDispatcherHook(recorder)
    hook.install("torch.distributed")
    is_below, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_below.set()
        assert goes_on.wait(60)

    with held(hold):
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(4),))
        thread.start()
        try:
            assert is_below.wait(60)
            hook.uninstall()
            forget_imports()
            del hook
            gc.collect()
            kept = [note() for note in notes if note() is not None]
        finally:
            goes_on.set()
            thread.join()
    assert len(kept) == 1, "that of the call"
    assert [record.op for record in recorder.in_flight.unfinished()] == ["all_reduce"]
    assert recorder.failures == {}


def test_a_kernel_that_fails_itself_lets_the_call_pass() -> None:
    library = torch.library.Library("dsprof_odd", "DEF")
    library.define("collective(Tensor[] tensors, int process_group) -> int")
    library.impl("collective", lambda tensors, group: group + 1, "CPU")
    noted: list[Any] = []
    failed: list[str] = []
    kernels = native.load_kernels()

    def begin() -> bool:
        return True

    kernels.watch_collective("dsprof_odd", "collective", begin, noted.append, failed.append)
    for _ in range(2):
        assert torch.ops.dsprof_odd.collective([torch.ones(4)], 6) == 7
        kernels.unwatch("dsprof_odd", "collective", begin)
    assert noted == []
    assert len(failed) == 1


def test_a_schema_without_a_group_is_no_collective() -> None:
    library = torch.library.Library("dsprof_alone", "DEF")
    library.define("collective(Tensor[] tensors) -> int")
    with pytest.raises(RuntimeError, match="collective has no process group"):
        native.load_kernels().watch_collective("dsprof_alone", "collective", bool, print, print)


def test_two_hooks_cannot_watch_one_kernel(install: Install) -> None:
    install(NativeDispatcherHook)
    with pytest.raises(RuntimeError, match="is watched already"):
        NativeDispatcherHook(Recorder(lambda: True)).install("torch.distributed")


def test_kernels_in_python_go_in_above_those_that_nobody_watches(install: Install) -> None:
    hook = NativeDispatcherHook(Recorder(lambda: True))
    hook.install("torch.distributed")
    hook.uninstall()
    recorder = install(DispatcherHook)
    dist.all_reduce(torch.ones(4))
    assert [record.op for record in handed_over(recorder)] == ["all_reduce"]


@pytest.mark.parametrize("communicate", [
    lambda: dist.all_reduce(torch.ones(4)),
    lambda: functional.wait_tensor(functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)),
])  # fmt: skip
def test_recording_may_begin_and_end_while_others_communicate(
    group: None, communicate: Callable[[], Any]
) -> None:
    errors: list[BaseException] = []
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            try:
                communicate()
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        recorder = Recorder(lambda: True)
        hooks = NativeDispatcherHook(recorder), NativeFunctionalHook(recorder)
        for hook in hooks:
            hook.install("torch.distributed")
        while not recorder.in_flight.unfinished() and not handed_over(recorder):
            pass
        for hook in hooks:
            hook.uninstall()
        forget_imports()
    is_over.set()
    for thread in threads:
        thread.join()
    assert errors == []


KINDS = [
    (DispatcherHook, FunctionalHook),
    (NativeDispatcherHook, NativeFunctionalHook),
]


@pytest.mark.parametrize("kinds", KINDS)
def test_a_broken_hook_is_left_alone(install: Install, kinds: tuple[type, type]) -> None:
    recorder = install(*kinds)
    asked = []

    def broken(*_: object, **__: object) -> None:
        asked.append(1)
        raise RuntimeError("on purpose")

    first = dist.all_reduce(torch.ones(4), async_op=True)  # then there is something to poll
    recorder.in_flight.poll = broken  # type: ignore[method-assign]
    recorder.in_flight.take_outputs = broken  # type: ignore[method-assign]
    for _ in range(10):
        assert dist.all_reduce(torch.ones(4), async_op=True) is not None
    assert len(asked) == 3
    for _ in range(10):
        torch.ops._c10d_functional.wait_tensor(torch.ones(4))
    assert len(asked) == 6
    first.wait()


def silent(*_: object) -> None:
    """Pass everything on and tell nothing."""


def failing(*_: object) -> None:
    raise RuntimeError("no such operation\n and where in C++")


@pytest.mark.parametrize(
    ("watch_wait", "why"),
    [
        (silent, "they do not say what happened"),
        (failing, "RuntimeError: no such operation"),
        (None, "TypeError: 'NoneType' object is not callable"),
    ],
)
def test_kernels_that_do_not_work_are_not_kept(watch_wait: Any, why: str) -> None:
    kernels = SimpleNamespace(watch_collective=silent, watch_wait=watch_wait, unwatch=silent)
    with pytest.raises(DsprofError, match=re.escape(f"do not work ({why}) and are not kept")):
        verify(kernels)  # type: ignore[arg-type]
    assert not dist.is_initialized()
