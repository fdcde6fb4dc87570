"""deprecated-config-key: an old name that DeepSpeed still takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsprof.analysis.aggregates.engines import Engines
from dsprof.findings.finding import Finding, Status
from dsprof.findings.wording import remarks
from dsprof.rules.configuration.config_rule import ConfigRule
from dsprof.rules.configuration.engine_settings import EngineSettings, named_keys
from dsprof.rules.knowledge.deepspeed.keys import ZERO, fate_of_retired, retired
from dsprof.rules.rule import NoThresholds, RuleMeta


class DeprecatedConfigKey(ConfigRule):
    """Looks for old names."""

    meta = RuleMeta(
        id="deprecated-config-key",
        title="No key of the DeepSpeed configuration is deprecated",
        failing_title="The DeepSpeed configuration uses deprecated keys",
        why="DeepSpeed removes old names in later releases, which then fail with an error.",
        category="configuration",
        order=590,
        needs=(Engines,),
    )

    def judge(self, settings: EngineSettings, thresholds: NoThresholds) -> Iterable[Finding]:
        """List old names, each with the new one."""
        rows = list(_old(settings))
        if rows:
            old = [path for path, _ in rows]
            yield self.meta.finding(
                Status.INFO,
                f"{named_keys(old)} {'is' if len(old) == 1 else 'are'} deprecated.",
                action=remarks(rows),
                evidence=(settings.table(rows, remark="what to do"),),
                confidence="high",
            )


def _old(settings: EngineSettings) -> Iterator[tuple[str, str]]:
    """Yield what is written in an old way, and what to write instead."""
    for path, value in settings.paths():
        if fate_of_retired(path, settings.release) == "deprecated":
            yield path, f"write {retired()[path].instead}"
        elif path == ZERO and isinstance(value, bool):
            yield path, f'write {{"stage": {int(value)}}}'
