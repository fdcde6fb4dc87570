"""Writes the report of a run that may still go on: a page in its folder, and text as output."""

from __future__ import annotations

import sys
from pathlib import Path

from dsprof.diagnosis.build import diagnose
from dsprof.errors import DsprofError
from dsprof.reports import render, write_whole
from dsprof.trace.run import find_run, goes_on


def main() -> int:
    """Report the newest run in the folder that is the first argument."""
    folder = Path(sys.argv[1])
    try:
        run = find_run([folder])
        diagnosis = diagnose(run, is_running=goes_on(run))
        write_whole(folder / "report.html", render(diagnosis, "html"))
        sys.stdout.buffer.write(render(diagnosis, "text"))
    except DsprofError as error:
        sys.stderr.write(str(error))
        return 2
    return 0
