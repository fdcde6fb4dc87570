"""Communication that no hook can see: noticed, counted, and named in the report.

Symmetric memory lets kernels read and write what other ranks hold. RPC has an agent and sockets of
its own. DeepCompile puts collectives of its own C++ into compiled graphs. A replayed CUDA graph
sends what was captured, and calls no Python.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from dsprof.hooks.base import Before, Hook, Target, hide_from_dynamo, nothing
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Note

_SYMMETRIC = ("torch._C._distributed_c10d", "_SymmetricMemory")
_RPC = "torch.distributed.rpc.api"
_GRAPH = ("torch.cuda.graphs", "CUDAGraph")

SYMMETRIC_MEMORY = (
    "symmetric memory is in use: what ranks read and write there directly is not recorded"
)
RPC = "torch.distributed.rpc is in use: its messages are not recorded"
DEEPCOMPILE = "DeepCompile is active: collectives inside its graphs are not recorded"
REPLAYS = "CUDA graphs that hold collectives are replayed: what replays send is not recorded"
UNKNOWN_REPLAYS = (
    "CUDA graphs captured before recording began are replayed: their communication is not recorded"
)


class UnseenHook(Hook):
    """Says once what communicates unseen, and at the end how often it was met."""

    name = "unseen"
    order = 900  # around the methods that it shares with deepspeed.engine and cuda
    targets = (
        *(
            Target(
                *(*_SYMMETRIC, name, "gives memory that other ranks use"),
                carries=f"uses of symmetric memory by {name}",
                since="2.5",
                after="torch.distributed",
            )
            for name in ("empty_strided_p2p", "rendezvous")
        ),
        Target(
            *(*_SYMMETRIC, "get_mempool_allocator", "gives a pool of memory that other ranks use"),
            carries="pools of symmetric memory",
            since="2.9",
            after="torch.distributed",
        ),
        Target(
            *(_RPC, "", "_init_rpc_states", "starts the agent of RPC"),
            carries="uses of RPC",
        ),
        Target(
            *("deepspeed.runtime.engine", "DeepSpeedEngine", "_take_model_step"),
            "asks once a step whether DeepCompile is active",
            carries="uses of DeepCompile",
        ),
        Target(*_GRAPH, "capture_begin", "collectives from here on are in the graph"),
        Target(*_GRAPH, "capture_end", "and those up to here"),
        Target(*_GRAPH, "replay", "sends what is in the graph"),
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._met: Counter[str] = Counter()
        recorder.trace_listeners.append(self._begin_again)
        # Of each graph, how many collectives it holds; while it is captured, those before it.
        self._graphs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        look: dict[str, Before] = {
            "_take_model_step": self._ask_engine,
            "capture_begin": self._begin_capture,
            "capture_end": self._end_capture,
            "replay": self._replay,
        }
        if target.owner == "_SymmetricMemory":  # called by an instance, too, these get no self
            return staticmethod(self._early(original, SYMMETRIC_MEMORY))
        if target.name == "_init_rpc_states":
            return self._early(original, RPC)
        return self.around(original, look[target.name], nothing)

    def _early(self, original: Callable[..., Any], text: str) -> Callable[..., Any]:
        """Wrap what is called once, often before the first collective, and used ever after."""
        hook, recorder = self, self.recorder

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            if not (recorder.stopped or hook.broken):
                try:
                    hook._meet(text)
                except Exception as error:
                    hook.fail(error)
            return original(*args, **kwargs)

        hide_from_dynamo(method)
        hide_from_dynamo(UnseenHook._meet, and_calls=True)
        return method

    def install(self, module: str) -> None:
        if module == _RPC and importlib.import_module(_RPC)._is_current_rpc_agent_set():
            self._meet(RPC)

    def uninstall(self) -> None:
        """Say how often what was said once has been met."""
        for text, count in self._met.items():
            if count > 1:
                self.recorder.outbox.define(Note(text, count=count))

    def _begin_again(self) -> None:
        """Say in a new trace what was set up before it."""
        lasting = self._met.keys() & {SYMMETRIC_MEMORY, RPC}
        self._met.clear()
        for text in lasting:
            self._meet(text)

    def _meet(self, text: str) -> None:
        self._met[text] += 1
        if self._met[text] == 1:
            self.recorder.outbox.define(Note(text))

    def _ask_engine(self, engine: Any, *args: Any, **kwargs: Any) -> None:
        # Releases before `is_deepcompile_active` have no way back once it is enabled and compiled.
        ask = getattr(engine, "is_deepcompile_active", None)
        if ask is None:
            enabled = getattr(engine, "is_deepcompile_enabled", bool)
            is_active = enabled() and getattr(engine, "is_compiled", False)
        else:
            is_active = ask()
        if is_active:
            self._meet(DEEPCOMPILE)

    def _begin_capture(self, graph: Any, *args: Any, **kwargs: Any) -> None:
        self._graphs[graph] = self.recorder.in_flight.captured

    def _end_capture(self, graph: Any) -> None:
        if graph in self._graphs:
            self._graphs[graph] = self.recorder.in_flight.captured - self._graphs[graph]

    def _replay(self, graph: Any) -> None:
        held = self._graphs.get(graph)
        if held is None:
            self._meet(UNKNOWN_REPLAYS)
        elif held:
            self._meet(REPLAYS)
