"""The public API for programs and plugins; every other module may change in any release.

Within an `API_VERSION` names are added and never removed, and keep their meaning, arguments and
fields. A name is deprecated for two releases before it is removed. docs/reference/plugins.md shows
the use.

Each name is imported when it is first used, so this module itself costs nothing. Only `Hook` and
`Target` import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsprof import load
    from dsprof.analysis.aggregates.communication import Communication
    from dsprof.analysis.aggregates.engines import Engines
    from dsprof.analysis.aggregates.environment import EnvironmentFacts
    from dsprof.analysis.aggregates.memory import Memory
    from dsprof.analysis.aggregates.run import Run
    from dsprof.analysis.aggregates.steps import Steps
    from dsprof.analysis.aggregates.traffic import Traffic
    from dsprof.analysis.summary import Aggregate, RankClock, RunSummary
    from dsprof.api.loaded_run import (
        CollectiveCall,
        EnvironmentFact,
        FlushCall,
        LoadedRun,
        MemoryReading,
    )
    from dsprof.api.rank_steps import RankStep
    from dsprof.api.recording import Recording
    from dsprof.api.rows import Rows
    from dsprof.diagnosis.model import Diagnosis
    from dsprof.diagnosis.parts.steps import StepParts
    from dsprof.errors import DsprofError, TraceError
    from dsprof.findings.finding import Column, Finding, Severity, Status, Table
    from dsprof.hooks.base import Hook, Target
    from dsprof.reports.base import Options, Renderer
    from dsprof.rules.rule import NoThresholds, Rule, RuleMeta
    from dsprof.trace.rank_trace import CollectivesBuilder, RankTrace
    from dsprof.trace.readers.base import Facts, OneRankReader, Reader
    from dsprof.trace.schema import Header, Step, Trailer

API_VERSION = 1

_HOMES = {
    "dsprof": ("load",),
    "dsprof.analysis.aggregates.communication": ("Communication",),
    "dsprof.analysis.aggregates.engines": ("Engines",),
    "dsprof.analysis.aggregates.environment": ("EnvironmentFacts",),
    "dsprof.analysis.aggregates.memory": ("Memory",),
    "dsprof.analysis.aggregates.run": ("Run",),
    "dsprof.analysis.aggregates.steps": ("Steps",),
    "dsprof.analysis.aggregates.traffic": ("Traffic",),
    "dsprof.analysis.summary": ("Aggregate", "RankClock", "RunSummary"),
    "dsprof.api.loaded_run": (
        "CollectiveCall",
        "EnvironmentFact",
        "FlushCall",
        "LoadedRun",
        "MemoryReading",
    ),
    "dsprof.api.rank_steps": ("RankStep",),
    "dsprof.api.recording": ("Recording",),
    "dsprof.api.rows": ("Rows",),
    "dsprof.diagnosis.model": ("Diagnosis",),
    "dsprof.diagnosis.parts.steps": ("StepParts",),
    "dsprof.errors": ("DsprofError", "TraceError"),
    "dsprof.findings.finding": ("Column", "Finding", "Severity", "Status", "Table"),
    "dsprof.hooks.base": ("Hook", "Target"),
    "dsprof.reports.base": ("Options", "Renderer"),
    "dsprof.rules.rule": ("NoThresholds", "Rule", "RuleMeta"),
    "dsprof.trace.schema": ("Header", "Step", "Trailer"),
    "dsprof.trace.readers.base": ("Facts", "OneRankReader", "Reader"),
    "dsprof.trace.rank_trace": ("CollectivesBuilder", "RankTrace"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "API_VERSION",
    "Aggregate",
    "CollectiveCall",
    "CollectivesBuilder",
    "Column",
    "Communication",
    "Diagnosis",
    "DsprofError",
    "Engines",
    "EnvironmentFact",
    "EnvironmentFacts",
    "Facts",
    "Finding",
    "FlushCall",
    "Header",
    "Hook",
    "LoadedRun",
    "Memory",
    "MemoryReading",
    "NoThresholds",
    "OneRankReader",
    "Options",
    "RankClock",
    "RankStep",
    "RankTrace",
    "Reader",
    "Recording",
    "Renderer",
    "Rows",
    "Rule",
    "RuleMeta",
    "Run",
    "RunSummary",
    "Severity",
    "Status",
    "Step",
    "StepParts",
    "Steps",
    "Table",
    "Target",
    "TraceError",
    "Traffic",
    "Trailer",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
