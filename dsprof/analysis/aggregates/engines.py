"""DeepSpeed engines: their configuration as written and as in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import EngineConfig

_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class Engines(Aggregate):
    """The engines of the lowest rank present."""

    rank: int
    engines: tuple[EngineConfig, ...]  # by number
    deepspeed: str  # version
    device: str  # of the rank: "cuda:0"
    lines: Mapping[str, int] | None  # of dotted keys; None: no file was read
    trained: tuple[int, ...]  # numbers of those that took steps, as far as the trace tells

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Engines:
        engines = tuple(trace.engines[key] for key in sorted(trace.engines))
        found = trace.environment.versions if trace.environment else {}
        versions = trace.header.versions | found
        trained = tuple(sorted({step.engine for step in trace.steps} & trace.engines.keys()))
        return cls(
            trace.rank,
            engines,
            versions.get("deepspeed", ""),
            trace.header.device,
            None,
            trained,
        )

    def merge(self, other: Engines) -> Engines:
        """Keep those of the lowest rank that has any."""
        return min(self, other, key=lambda one: (not one.engines, one.rank))

    @property
    def main(self) -> EngineConfig | None:
        """The first engine that trains; the first of all where it is not known which do."""
        trained = (one for one in self.engines if one.engine in self.trained)
        return next(trained, self.engines[0] if self.engines else None)

    @property
    def each(self) -> list[Engines]:
        """The same of one engine at a time."""
        return [replace(self, engines=(one,)) for one in self.engines]

    @property
    def known(self) -> list[EngineConfig]:
        """Those whose written configuration is known, if only that it sets nothing."""
        return [one for one in self.engines if one.written or self.lines is not None]

    @property
    def stage(self) -> int | None:
        """The ZeRO stage; None without an engine."""
        if self.main is None:
            return None
        stage = self.zero("stage", 0)
        return stage if isinstance(stage, int) else 0

    @property
    def accumulation(self) -> int:
        """Micro-steps of one optimizer step, as configured."""
        steps = self.setting("gradient_accumulation_steps", 1)
        return steps if isinstance(steps, int) and steps > 0 else 1

    @property
    def precision(self) -> str:
        """The precision of the model as configurations spell it: bf16, fp16 or fp32."""
        return _PRECISIONS.get(self.main.parameter_dtype if self.main else "", "fp32")

    def setting(self, key: str, default: Any = None) -> Any:
        """Return the value in force of a top-level key."""
        return default if self.main is None else self.main.effective.get(key, default)

    def zero(self, key: str, default: Any = None) -> Any:
        """Return the value in force of a key of `zero_optimization`, as users spell the key.

        DeepSpeed itself knows most keys of stage 3 without their prefix.
        """
        section = _section(self.main.effective if self.main else {})
        return section.get(key, section.get(key.removeprefix("stage3_"), default))

    def written_zero(self, key: str) -> Any:
        """Return what the user wrote under `zero_optimization`; None if nothing."""
        return _section(self.main.written if self.main else {}).get(key)


def _section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    section = config.get("zero_optimization")
    return section if isinstance(section, Mapping) else {}
