"""Observes a command from a second process, and says at its end if nothing was recorded.

`dsprof run` becomes the command, so the command keeps its process ID, parent, terminal, signals and
exit code. A waiting parent could not forward signals exactly: those to a process group, as from
timeout or Ctrl-C, would arrive twice. So the observer is neither parent nor child of the command.
If the command itself imports torch, it prints the message, and the observer ends at once.
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
dsprof: nothing was recorded in {}: no process of the command imported torch, with dsprof \
installed beside it, and communicated with another rank. Run python -m dsprof doctor in the \
training environment, and start several ranks, such as: \
dsprof run -- torchrun --nproc-per-node 2 train.py
"""


def observe(out: Path) -> str:
    """Start an observer of this process, and return its address.

    "" if none can run: before Linux 5.3, or if this process inherits orphans, as the first process
    of a container does.
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
    """Become an orphan in a session of its own, which no signal to the command's group reaches."""
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
            start = "\n" if os.isatty(2) else ""  # the shell may have printed its prompt
            os.write(2, f"{start}{_SILENCE.format(escaped(str(out)))}".encode())


def _keep_only(*kept: int) -> None:
    """Close pipes whose readers wait for their end, and leave the current folder."""
    os.chdir("/")
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept:
            with suppress(OSError):
                os.close(fd)
