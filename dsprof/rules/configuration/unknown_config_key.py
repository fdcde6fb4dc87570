"""unknown-config-key: a key of the DeepSpeed configuration that DeepSpeed never looks at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dsprof.analysis.aggregates.engines import Engines
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import capitalised, remarks
from dsprof.rules.configuration.config_rule import ConfigRule
from dsprof.rules.configuration.engine_settings import (
    EngineSettings,
    named_keys,
    them,
)
from dsprof.rules.configuration.unknown_keys import fate_of, meant_by
from dsprof.rules.knowledge.deepspeed.keys import AUTO, fate_of_retired, keys, retired
from dsprof.rules.rule import RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How like a known key an unknown one must be to count as misspelt."""

    similarity: float = 0.86  # difflib ratio


class UnknownConfigKey(ConfigRule):
    """Looks for keys that are ignored without a message."""

    meta = RuleMeta(
        id="unknown-config-key",
        title="DeepSpeed reads every key of its configuration",
        failing_title="The DeepSpeed configuration holds a key that DeepSpeed does not read",
        why="DeepSpeed silently ignores unknown keys at the top level: the intended setting is not "
        "in force.",
        category="configuration",
        order=540,
        needs=(Engines,),
    )
    thresholds = Thresholds()

    def judge(self, settings: EngineSettings, thresholds: Thresholds) -> Iterable[Finding]:
        """Report keys that were meant for DeepSpeed, and apart from them keys of somebody else."""
        ignored = list(ignored_keys(settings, thresholds.similarity))
        if {path for path, instead in ignored if instead} >= _OF_TRL:
            yield self._of_trl(settings)
            ignored = [row for row in ignored if row[0] not in _OF_TRL]
        if meant := [(path, instead) for path, instead in ignored if instead]:
            yield self._meant(settings, meant)
        if others := [(path, "") for path, what in ignored if not what]:
            yield self._others(settings, others)

    def _meant(self, settings: EngineSettings, rows: list[tuple[str, str]]) -> Finding:
        verb = "is" if len(rows) == 1 else "are"
        return self.meta.finding(
            Status.FAIL,
            f"{named_keys([path for path, _ in rows])} {verb} ignored without a message.",
            problem=f"{named_keys([path.rpartition('.')[2] for path, _ in rows])} {verb} ignored",
            fix=capitalised(rows[0][1].partition("; ")[0]),
            severity=Severity.MEDIUM,
            cause="DeepSpeed looks up the keys that it knows and does not check for others.",
            action=remarks(rows),
            evidence=(settings.table(rows, remark="instead"),),
            confidence="high",
        )

    def _of_trl(self, settings: EngineSettings) -> Finding:
        rows = [(path, "") for path in sorted(_OF_TRL)]
        return self.meta.finding(
            Status.INFO,
            f"DeepSpeed does not read {named_keys([path for path, _ in rows])}.",
            title="TRL writes keys that DeepSpeed does not read",
            cause="TRL writes them with a dot for a model that it does not train, such as the "
            "reference model; DeepSpeed's defaults are in force.",
            action="No change is needed. To set them, write them into the section "
            '"zero_optimization" of the DeepSpeed configuration.',
            evidence=(settings.table(rows, remark="remark"),),
            confidence="medium",
        )

    def _others(self, settings: EngineSettings, rows: list[tuple[str, str]]) -> Finding:
        return self.meta.finding(
            Status.INFO,
            f"DeepSpeed does not read {named_keys([path for path, _ in rows])}.",
            title="The DeepSpeed configuration holds keys of another program",
            cause="They may be keys of another program that reads the same file.",
            action=f"Delete {them(rows)} if nothing else reads {them(rows)}.",
            evidence=(settings.table(rows, remark="remark"),),
            confidence="medium",
        )


_OF_TRL = {
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.stage3_prefetch_bucket_size",
}
"""What `prepare_deepspeed` of TRL puts at the top level, all three at once."""


def ignored_keys(settings: EngineSettings, similarity: float) -> Iterator[tuple[str, str]]:
    """Yield keys that DeepSpeed ignores, each with what to write instead; "" if unknown."""
    for path, _ in settings.paths():
        fate = fate_of_retired(path, settings.release)
        if fate == "ignored":
            yield path, retired()[path].instead
        elif fate or path in retired():
            continue  # refused, deprecated, or not retired yet
        elif fate_of(path, settings.release) == "ignored":
            yield path, meant_by(path, settings.release, similarity)
    for path, nested in settings.dotted():
        is_meant = path in keys() and nested in (None, AUTO)
        yield path, "nest it in its section; a dot is part of a name" if is_meant else ""
