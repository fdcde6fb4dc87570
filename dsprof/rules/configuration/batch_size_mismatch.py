"""batch-size-mismatch: batch sizes that fit no number of ranks, or only some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dsprof.analysis.aggregates.engines import Engines
from dsprof.findings.finding import Finding, Severity, Status, Table
from dsprof.rules.configuration.config_rule import ConfigRule
from dsprof.rules.configuration.engine_settings import EngineSettings, named_keys
from dsprof.rules.knowledge.deepspeed.keys import AUTO
from dsprof.rules.rule import NoThresholds, RuleMeta

_TRAIN = "train_batch_size"
_MICRO = "train_micro_batch_size_per_gpu"
_STEPS = "gradient_accumulation_steps"
_KEYS = (_TRAIN, _MICRO, _STEPS)


class _Sizes(NamedTuple):
    train: int | None
    micro: int | None
    steps: int | None

    @property
    def ranks(self) -> int | None:
        """The batch size that data-parallel ranks must divide, or with all three, must be.

        None where every number of ranks fits, 0 where none does.
        """
        if self.train is None:
            return None
        given = (self.micro or 1) * (self.steps or 1)
        return self.train // given if self.train % given == 0 else 0


class BatchSizeMismatch(ConfigRule):
    """Checks train_batch_size = micro batch x accumulation x data-parallel ranks."""

    meta = RuleMeta(
        id="batch-size-mismatch",
        title="Batch sizes are consistent",
        failing_title="Batch sizes do not fit every number of ranks",
        why="DeepSpeed fails at its start unless train_batch_size is the product of micro batch, "
        "accumulation steps and data-parallel ranks.",
        category="configuration",
        order=550,
        needs=(Engines,),
    )

    def judge(self, settings: EngineSettings, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report sizes that fit no number of ranks; say which numbers the others fit."""
        if settings.has_run:
            return  # they fitted
        values = [settings.written.get(key) for key in _KEYS]
        bad = [key for key, value in zip(_KEYS, values, strict=True) if not _may_be_size(value)]
        if bad:
            yield self._invalid(settings, bad)
        elif values[:2] == [None, None]:
            yield self._absent()
        elif AUTO not in values:
            sizes = _Sizes(*(value and int(value) for value in values))
            if sizes.ranks == 0:
                yield self._impossible(settings, sizes)
            elif sizes.ranks is not None:
                yield self._some(settings, sizes)

    def _invalid(self, settings: EngineSettings, bad: Sequence[str]) -> Finding:
        who = named_keys(bad)
        what = "a whole number" if len(bad) == 1 else "whole numbers"
        return self.meta.finding(
            Status.FAIL,
            f"{who} must be {what} of at least 1.",
            title="A batch size is invalid",
            problem="A batch size is invalid",
            fix=f"Set {bad[0]} to a whole number of at least 1",
            severity=Severity.HIGH,
            action=f"Set {who} to a whole number of at least 1, unless your code does.",
            evidence=(self._table(settings),),
            confidence="high",
        )

    def _absent(self) -> Finding:
        return self.meta.finding(
            Status.INFO,
            f"Neither {_TRAIN} nor {_MICRO} is set: DeepSpeed needs one of them.",
            action=f"Set {_MICRO}, unless accelerate or your code does.",
            confidence="medium",
        )

    def _impossible(self, settings: EngineSettings, sizes: _Sizes) -> Finding:
        return self.meta.finding(
            Status.FAIL,
            "The batch sizes fit no number of ranks.",
            severity=Severity.HIGH,
            cause=f"{_TRAIN} must be {_MICRO} x {_STEPS} x data-parallel ranks.",
            action=f"Delete {_TRAIN}: DeepSpeed computes it."
            if sizes.micro
            else f"Set {_TRAIN} to a multiple of {_STEPS}.",
            evidence=(self._table(settings),),
            confidence="high",
        )

    def _some(self, settings: EngineSettings, sizes: _Sizes) -> Finding:
        how = "is" if (sizes.micro and sizes.steps) or sizes.ranks == 1 else "divides"
        return self.meta.finding(
            Status.INFO,
            f"The batch sizes fit if the number of data-parallel ranks {how} {sizes.ranks:,}.",
            action=f"{f'Delete {_TRAIN}' if sizes.micro else f'Set {_MICRO} instead of {_TRAIN}'} "
            "to make the file fit every number of ranks.",
            evidence=(self._table(settings),),
            confidence="high",
        )

    def _table(self, settings: EngineSettings) -> Table:
        rows = [
            (_TRAIN, "micro-batch * accumulation steps * ranks"),
            (_MICRO, ""),
            (_STEPS, ""),
        ]
        return settings.table(rows, remark="is")


def _may_be_size(value: object) -> bool:
    if value in (None, AUTO):
        return True
    return isinstance(value, (int, float)) and value > 0 and value % 1 == 0
