"""Ports for programs that cannot take any free one and say which."""

from __future__ import annotations

import random
import socket

_NOT_EPHEMERAL = range(15_000, 32_000)
"""Where the system takes no port from: one of its own may be taken again before it is used."""


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free, and stays it unless it is asked for."""
    for port in random.sample(_NOT_EPHEMERAL, len(_NOT_EPHEMERAL)):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port")
