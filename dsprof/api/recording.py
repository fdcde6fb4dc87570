"""The handle of `with dsprof.record() as run`: a recording that can be reported at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from dsprof.config import Config
from dsprof.recording import session
from dsprof.recording.messages import say
from dsprof.trace.host_folders import shared_folder

_PAGE = "report.html"


class Recording:
    """A recording of this process, on inside `with`."""

    def __init__(self, config: Config, options: Mapping[str, Any]) -> None:
        self._config, self._options = config, options
        self._session: session.Session | None = None
        self._is_mine = False

    def __enter__(self) -> Recording:
        self._is_mine = session.current() is None
        session.start(self._config, self._options)
        self._session = session.current()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_mine and self._session is session.current():
            session.stop()

    def __repr__(self) -> str:
        if self._session is None:
            return "dsprof recording: not begun"
        state = "on" if self._session is session.current() else "ended"
        trace = self._session.trace_file
        place = f"trace in {trace.parent}" if trace else "no process group has communicated"
        return f"dsprof recording: {state}, {place}"

    def report(self, path: str | os.PathLike[str] | None = None) -> Path | None:
        """Write the report of what is on disk so far, on rank 0 only, and return its path.

        Without `path` it is report.html in the folder of the traces. Nothing waits for other
        ranks: where the run goes on, the page and standard error say so. Returns None, and writes
        nothing, on other ranks and where nothing was recorded.

        Raises:
            DsprofError: the traces cannot be read, or the page cannot be written.
        """
        trace = self._session.trace_file if self._session is not None else None
        if trace is None:
            if os.environ.get("RANK", "0") == "0":
                say("nothing is recorded yet: no process group has communicated")
            return None
        if self._session is None or self._session.rank != 0:
            return None
        return _write_report(trace, Path(path) if path else shared_folder(trace) / _PAGE)


def _write_report(trace: Path, page: Path) -> Path:
    from dsprof.api.loaded_run import LoadedRun
    from dsprof.diagnosis.build import summarise_all
    from dsprof.reports import render, write_whole
    from dsprof.trace.run import find_run, goes_on

    files = find_run([shared_folder(trace)], last=trace)
    run = LoadedRun(summarise_all(files, is_running=goes_on(files)), files)
    if text := run.unfinished():
        say(text)
    write_whole(page, render(run.diagnosis, "html"))
    return page
