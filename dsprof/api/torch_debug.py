"""What ranks do now, as a page of the server of torch.distributed.debug (torch 2.13).

    from torch.distributed.debug import start_debug_server
    from torch.distributed.debug._debug_handlers import default_handlers
    start_debug_server(handlers=[*default_handlers(), DebugPage()])

on all ranks. dsprof never starts this server, because it listens on all interfaces.
"""

from __future__ import annotations

import time
from html import escape
from typing import Any

from torch._C._distributed_c10d import _register_handler
from torch.distributed.debug._frontend import DebugHandler, NavLink, Response, Route, fetch_all

from dsprof.errors import TraceError
from dsprof.findings import formatting as fmt
from dsprof.recording import session
from dsprof.trace.dumps.state_file import RankState, StateCall, read_state

_NAME = "dsprof"


class DebugPage(DebugHandler):
    """Shows the current step and the collectives in flight of each rank.

    Make it once on each rank. Each rank answers from what it records.
    """

    def __init__(self) -> None:
        _register_handler(_NAME, _answer)

    def routes(self) -> list[Route]:
        """Return the address of the page."""
        return [Route(f"/{_NAME}", self._page)]

    def nav_links(self) -> list[NavLink]:
        """Return the link to it."""
        return [NavLink(f"/{_NAME}", _NAME)]

    def dump(self) -> str:
        """Return the page as text, for the server's periodic dumps."""
        addresses, answers = fetch_all(_NAME, timeout=self.fetch_timeout)
        parts = zip(addresses, answers, strict=True)
        return "\n".join(f"=== {place}\n{answer.text}" for place, answer in parts)

    def dump_filename(self) -> str:
        """Return its name in `enabled_dumps`."""
        return _NAME

    def _page(self, request: Any) -> bytes:
        addresses, answers = fetch_all(_NAME, timeout=self.fetch_timeout)
        harmless = [Response(one.status_code, escape(one.text)) for one in answers]
        page: bytes = request.frontend.render_template(
            "raw_resp.html", title=_NAME, addrs=addresses, resps=harmless
        )
        return page


def _answer(_: Any, response: Any) -> None:
    """Answer for this rank, in a thread of the server."""
    response.set_content("\n".join(_lines()), "text/plain")
    response.set_status(200)


def _lines() -> list[str]:
    on = session.current()
    path = on.recorder.in_flight.state.path if on is not None else None
    if on is None or path is None:
        return ["not recording"]
    try:
        state = read_state(path)
    except TraceError as error:
        return [str(error)]
    figures = [f"{name} = {value:g}" for name, value in session.metrics().items()]
    now_ns = time.perf_counter_ns()
    flying = [_called(state, call, now_ns) for call in state.in_flight]
    place = f"in step {state.step}" if state.step >= 0 else "before the first step"
    return [place, *figures, *(flying or ["no collective in flight"])]


def _called(state: RankState, call: StateCall, now_ns: int) -> str:
    group, site = state.groups.get(call.group), state.sites.get(call.site)
    label = group.label if group else "unknown group"
    place = f", called from {site.file}:{site.line}" if site else ""
    age = fmt.duration(now_ns - call.issue_ns)
    return f"{call.op} {call.seq} of {label}, {fmt.size(call.nbytes)}, in flight for {age}{place}"
