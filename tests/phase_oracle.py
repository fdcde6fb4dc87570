"""Counts c10d operations by the phase in which torch sees them; shares nothing with dsprof.

Labels are put around functions of the libraries, and torch's ExecutionTraceObserver notes both the
labels and the operations inside them.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ExecutionTraceObserver, record_function


def label_phases() -> None:
    """Put labels around forward, backward and step; of several that are open the innermost counts.

    Forward is the outermost call of a module. An engine of DeepSpeed has a backward and a step of
    its own.
    """
    torch.nn.Module.__call__ = _outermost(torch.nn.Module.__call__)  # type: ignore[method-assign]
    _label(torch.autograd, "backward", "backward")
    _label(torch.optim.AdamW, "step", "step")
    try:
        from deepspeed.runtime.engine import DeepSpeedEngine
    except ImportError:
        return
    _label(DeepSpeedEngine, "backward", "backward")
    _label(DeepSpeedEngine, "step", "step")


def counted(run: Callable[[], Any], raw: Path) -> tuple[Any, Counter[str]]:
    """Return what `run` returns, and the calls of each "phase/operation"."""
    observer = ExecutionTraceObserver().register_callback(str(raw))
    observer.start()
    result = run()
    observer.stop()
    observer.unregister_callback()
    nodes = {node["id"]: node for node in json.loads(raw.read_text())["nodes"]}
    return result, Counter(
        f"{_phase(node, nodes)}/{node['name'].removeprefix('c10d::')}"
        for node in nodes.values()
        if node["name"].startswith("c10d::")
    )


def _outermost(call: Callable[..., Any]) -> Callable[..., Any]:
    depth = 0

    def labelled(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if depth:
            return call(self, *args, **kwargs)
        depth += 1
        try:
            with record_function("phase:forward"):
                return call(self, *args, **kwargs)
        finally:
            depth -= 1

    return labelled


def _label(owner: Any, name: str, phase: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def labelled(*args: Any, **kwargs: Any) -> Any:
        with record_function(f"phase:{phase}"):
            return original(*args, **kwargs)

    setattr(owner, name, labelled)


def _phase(node: dict[str, Any], nodes: dict[int, dict[str, Any]]) -> str:
    while node and not node["name"].startswith("phase:"):
        parent = node["ctrl_deps"]
        node = nodes.get(parent, {}) if parent != node["id"] else {}
    return str(node["name"]).removeprefix("phase:") if node else ""
