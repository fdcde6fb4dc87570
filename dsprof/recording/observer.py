"""Watches a command from beside it, and says at its end that nothing was recorded.

`dsprof run` becomes the command, which so keeps its process, parent, terminal, signals and exit
code. A parent that waits could not pass signals on exactly: those for a process group, as of
timeout or Ctrl-C, would arrive twice. So the observer is no relative of the command. Where the
command itself imports torch, it says the same before it ends, and the observer ends at once.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from select import select
from socket import AF_UNIX, SOCK_DGRAM, socket
from typing import NoReturn

from dsprof.errors import escaped

_READY = b"ready"
_SILENCE = """\
dsprof: nothing was recorded in {}: no process of the command both imported torch where dsprof is \
installed and communicated with another rank. Run python -m dsprof doctor in the environment that \
trains, and start several ranks, such as: dsprof run -- torchrun --nproc-per-node 2 train.py
"""


def observe(out: Path) -> str:
    """Start an observer of this process, and return its address.

    "" where there can be none: before Linux 5.3, and of a process that inherits orphans, as the
    first one of a container does.
    """
    if not hasattr(os, "pidfd_open"):
        return ""
    command, address = os.getpid(), f"dsprof-{token_hex(8)}"
    try:
        answer, ours = os.pipe()
        child = os.fork()
    except OSError:
        return ""
    if child == 0:
        _leave(command, address, out.absolute(), ours)
    os.close(ours)
    os.waitpid(child, 0)
    with open(answer, "rb") as pipe:
        said = pipe.read()
    if said.isdigit():
        os.waitpid(int(said), 0)
    return address if said == _READY else ""


def dismiss(address: str) -> None:
    """End an observer, without a message."""
    with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM) as letter:
        letter.setblocking(False)
        letter.sendto(b"", f"\0{address}")


def _leave(command: int, address: str, out: Path, answer: int) -> NoReturn:
    """Become an orphan, in a session of its own: no signal of the command's group comes there."""
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent:
                time.sleep(0.001)
            _wait(command, address, out, answer)
    finally:
        os._exit(0)


def _wait(command: int, address: str, out: Path, answer: int) -> None:
    started_s = time.time()
    with socket(AF_UNIX, SOCK_DGRAM) as letters:
        letters.bind(f"\0{address}")
        end = os.pidfd_open(command)
        if os.getppid() == command:
            os.write(answer, str(os.getpid()).encode())
            return
        os.write(answer, _READY)
        os.close(answer)
        # It takes a while, in which the command starts.
        from dsprof.trace.host_folders import traces_in

        letter = letters.fileno()
        _keep_only(2, end, letter)
        readable, *_ = select([end, letter], [], [])
    if letter in readable:
        return
    with suppress(OSError):
        if not any(one.stat().st_mtime >= started_s for one in traces_in(out)):
            start = "\n" if os.isatty(2) else ""  # a shell may have asked for the next command
            os.write(2, f"{start}{_SILENCE.format(escaped(str(out)))}".encode())


def _keep_only(*kept: int) -> None:
    """Close what somebody may read to its end, and hold no folder."""
    os.chdir("/")
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept:
            with suppress(OSError):
                os.close(fd)
