"""Keeps what processes of a run that are gone have left in the memory of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsprof.trace.run import RunFiles


def keep_live_states(run: RunFiles) -> None:
    """Copy the live states of dead ranks beside their traces: memory holds them for a day."""
    from dsprof.environment import boot_id
    from dsprof.recording.live_state import keep_states_of_the_dead

    here = boot_id()
    places = {
        (header.run_key, path.parent)
        for path, header in zip(run.files, run.headers, strict=True)
        if header.boot_id == here
    }
    for run_key, folder in places:
        keep_states_of_the_dead(run_key, folder)
