"""Starts the process that follows a run: it answers Prometheus and sends alerts.

It reads the traces, so it takes no time and no GIL of training. It is started afresh, not forked,
and training itself opens no port that a child could inherit. Only that process reads the file of
alerts, which contains secrets.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from dsprof.config import SWITCH
from dsprof.environment.own_command import own_command
from dsprof.trace.schema import Header, Note


def follow_beside(
    header: Header, folder: Path, metrics_port: int | None, alerts: Path | None
) -> list[Note]:
    """Start it on the ranks that the settings name; return what could not be started."""
    is_first_here = header.local_rank == 0 or (header.local_rank < 0 and header.rank == 0)
    port = metrics_port if is_first_here else None
    file = alerts if header.rank == 0 else None
    notes = []
    if port and _is_taken(port):
        taken = f"another program listens on port {port} of 127.0.0.1"
        notes.append(Note(f"no metrics: {taken}; change metrics_port"))
        port = None
    if port or file:
        try:
            _start(str(folder), str(port or ""), str(file or ""))
        except OSError as error:
            notes.append(
                Note(f"no metrics and no alerts: their process cannot start: {error.strerror}")
            )
    return notes


def _start(*arguments: str) -> None:
    process = subprocess.Popen(
        own_command("dsprof.live.beside", *arguments),
        env={**os.environ, SWITCH: "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # signals that end the run do not reach it
    )
    process.returncode = 0  # it outlives this process


def _is_taken(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
