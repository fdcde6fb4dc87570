"""Starts the process that follows a run for its user: a port for Prometheus, and alerts.

It reads the traces, so training lends it no time and no interpreter. It is no fork of training,
which itself opens no port that a forked child could hold. Only that process reads the file of
alerts, which holds secrets.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from dsprof.config import SWITCH, Config
from dsprof.environment.own_command import own_command
from dsprof.trace.schema import Header, Note


def follow_beside(config: Config, header: Header, folder: Path) -> list[Note]:
    """Start it on the rank that the settings are for; return what could not be done."""
    is_first_here = header.local_rank == 0 or (header.local_rank < 0 and header.rank == 0)
    port = config.metrics_port if is_first_here else None
    file = config.alerts if header.rank == 0 else None
    notes = []
    if port and _is_taken(port):
        notes.append(Note(f"no metrics: another program listens on port {port} of 127.0.0.1"))
        port = None
    if port or file:
        try:
            _start(str(folder), str(port or ""), file or "")
        except OSError as error:
            notes.append(Note(f"no metrics and no alerts: {error.strerror}"))
    return notes


def _start(*arguments: str) -> None:
    process = subprocess.Popen(
        own_command("dsprof.live.beside", *arguments),
        env={**os.environ, SWITCH: "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # it sees the end of the run, however that comes
    )
    process.returncode = 0  # it outlives this process


def _is_taken(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
