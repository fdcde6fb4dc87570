"""The models that are trained, as their first forwards showed them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Model


@dataclass(frozen=True, slots=True)
class Models(Aggregate):
    """The models of the lowest rank that has any."""

    rank: int
    models: tuple[Model, ...]  # by number

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Models:
        return cls(trace.rank, tuple(trace.models[number] for number in sorted(trace.models)))

    def merge(self, other: Models) -> Models:
        """Keep those of the lowest rank that has any."""
        return min(self, other, key=lambda one: (not one.models, one.rank))

    @property
    def only(self) -> Model | None:
        """The model, where there is one."""
        return self.models[0] if len(self.models) == 1 else None


def flops_per_token(model: Model) -> int:
    """Return the operations of forward and backward: 6 for each parameter, 4 for a frozen one.

    Attention and recomputation are not in it.
    """
    return 4 * model.parameters + 2 * model.trained


def tokens_per_forward(model: Model) -> float:
    """Return the tokens of a micro-step of one rank, 0 where a forward did not show them."""
    return mean(model.tokens) if model.tokens and all(model.tokens) else 0.0
