"""Where a C call holds the interpreter lock, the compiled helper writes where the threads are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dsprof.errors import TraceError
from dsprof.hooks.wire.native import load_kernels
from dsprof.trace.dumps.faulthandler_text import threads_of
from dsprof.trace.dumps.state_file import RankState, read_state
from tests.dist.launch import ROOT

PROGRAM = """
import ctypes, os, sys
from pathlib import Path

from dsprof.hooks.wire.native import watch_starvation
from dsprof.recording.recorder import live_state
from dsprof.recording.recorder.live_state import LiveState
from dsprof.trace.scope import Scope
from tests.factories.trace import header

live_state.memory_folders = lambda: iter([Path(sys.argv[1])])
live = LiveState()
live.watch_starvation = watch_starvation
assert live.open(header(pid=os.getpid()), lambda definition: definition) == ""
live.beat(Scope(1, 0, ""))
live.expect_life(10**9)

def hold_interpreter():
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)

hold_interpreter()
live.close()
print("went on")
"""

CRASHES = "extern int *nowhere; int *nowhere; void _Py_DumpTracebackThreads() { *nowhere = 1; }"

pytestmark = [
    pytest.mark.skipif(sys.version_info[:2] not in ((3, 11), (3, 12)), reason="not exported"),
]


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    load_kernels()


def starved(folder: Path, env: dict[str, str]) -> tuple[RankState, str, int]:
    """Let a process hold its interpreter lock until there are stacks of it."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        cwd=ROOT,
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    state = None
    while process.poll() is None and (state is None or not state.stacks_ns):
        time.sleep(0.02)
        with suppress(TraceError):  # it is just being made
            state = next((read_state(path) for path in folder.glob("*.state")), None)
    said, _ = process.communicate("\n")
    assert state is not None
    return state, said, process.returncode


def test_the_line_of_the_call_is_known_and_the_process_goes_on(tmp_path: Path) -> None:
    state, said, code = starved(tmp_path, {})
    first = threads_of(state.stacks)[0]
    assert [frame.rpartition(" ")[2] for frame in first.frames] == ["hold_interpreter", "<module>"]
    assert first.frames[0].startswith("<string>:")
    assert (said, code) == ("went on\n", 0)
    assert [*tmp_path.iterdir()] == []


def test_a_crash_over_what_was_read_ends_no_training(tmp_path: Path) -> None:
    library, source = tmp_path / "crashes.so", tmp_path / "crashes.c"
    source.write_text(CRASHES)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    memory = tmp_path / "memory"
    memory.mkdir()
    state, said, code = starved(memory, {"LD_PRELOAD": str(library)})
    assert state.stacks == ""
    assert (said, code) == ("went on\n", 0)
