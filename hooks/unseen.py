"""What communicates where no hook can see it: noticed, counted, and named in the report.

Symmetric memory lets kernels read and write what other ranks hold. DeepCompile puts collectives of
its own C++ into compiled graphs. A replayed CUDA graph sends what was captured, and calls nobody.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from dsprof.hooks.base import Before, Hook, Target, nothing
from dsprof.recorder import Recorder
from dsprof.trace.format import NoteArgs

_SYMMETRIC = ("torch._C._distributed_c10d", "_SymmetricMemory")
_GRAPH = ("torch.cuda.graphs", "CUDAGraph")

SYMMETRIC_MEMORY = (
    "symmetric memory is in use: what ranks read and write there directly is not seen"
)
DEEPCOMPILE = "DeepCompile is active: collectives inside its graphs are not seen"
REPLAYS = "CUDA graphs that hold collectives are replayed: what replays send is not seen"
UNKNOWN_REPLAYS = (
    "CUDA graphs captured before recording began are replayed: if they communicate, it is not seen"
)


class UnseenHook(Hook):
    """Says once what communicates unseen, and at the end how often it was met."""

    name = "unseen"
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
        recorder.world_listeners.append(self._met.clear)
        # Of each graph, how many collectives it holds; while it is captured, those before it.
        self._graphs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        look: dict[str, Before] = {
            "empty_strided_p2p": self._use_memory,
            "rendezvous": self._use_memory,
            "_take_model_step": self._ask_engine,
            "capture_begin": self._begin_capture,
            "capture_end": self._end_capture,
            "replay": self._replay,
        }
        watched = self.around(original, look[target.name], nothing)
        # Called by an instance, too, these two get no self.
        return staticmethod(watched) if target.owner == "_SymmetricMemory" else watched

    def uninstall(self) -> None:
        """Say how often what was said once has been met."""
        for text, count in self._met.items():
            if count > 1:
                self.recorder.define(NoteArgs(text, count=count))

    def _meet(self, text: str) -> None:
        self._met[text] += 1
        if self._met[text] == 1:
            self.recorder.define(NoteArgs(text))

    def _use_memory(self, *args: Any, **kwargs: Any) -> None:
        self._meet(SYMMETRIC_MEMORY)

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
        self._graphs[graph] = self.recorder.captured

    def _end_capture(self, graph: Any) -> None:
        if graph in self._graphs:
            self._graphs[graph] = self.recorder.captured - self._graphs[graph]

    def _replay(self, graph: Any) -> None:
        held = self._graphs.get(graph)
        if held is None:
            self._meet(UNKNOWN_REPLAYS)
        elif held:
            self._meet(REPLAYS)
