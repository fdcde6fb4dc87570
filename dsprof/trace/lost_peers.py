"""How communication fails because of another rank, by the messages of exceptions."""

from __future__ import annotations

import re

_LOST = (
    ("timeout", r"(?i)\btimed out\b|\btimeout\b|to pass monitoredBarrier"),
    (
        "connection",
        r"(?i)(closed|reset) by (remote )?peer|broken pipe|connection was likely closed"
        r"|peer closed the connection|remote process exit|ncclRemoteError",
    ),
)


def lost(message: str) -> str:
    """Return "timeout" if a peer did not come in time, "connection" if its process closed it.

    "" for a message of anything else.
    """
    return next((how for how, pattern in _LOST if re.search(pattern, message)), "")
