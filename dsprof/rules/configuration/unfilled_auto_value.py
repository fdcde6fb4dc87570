"""unfilled-auto-value: "auto" in a configuration, which DeepSpeed itself cannot fill in."""

from __future__ import annotations

from collections.abc import Iterable

from dsprof.analysis.aggregates.engines import Engines
from dsprof.findings.finding import Finding, Status
from dsprof.rules.configuration.config_rule import ConfigRule
from dsprof.rules.configuration.engine_settings import EngineSettings, named_keys
from dsprof.rules.knowledge.deepspeed.keys import AUTO, fate_of_auto
from dsprof.rules.rule import NoThresholds, RuleMeta


class UnfilledAutoValue(ConfigRule):
    """Looks for values that only transformers and accelerate fill in."""

    meta = RuleMeta(
        id="unfilled-auto-value",
        title='No value of the DeepSpeed configuration is "auto"',
        failing_title='Values of the DeepSpeed configuration are "auto"',
        why='DeepSpeed drops "auto" in favour of its default in some sections, and fails on it '
        "elsewhere; transformers and accelerate replace it before.",
        category="configuration",
        order=600,
        needs=(Engines,),
    )

    def judge(self, settings: EngineSettings, thresholds: NoThresholds) -> Iterable[Finding]:
        """List the values, with what is in force where an engine was made."""
        autos = [path for path, value in settings.paths() if value == AUTO]
        paths = [path for path in autos if fate_of_auto(path, settings.release) != "own"]
        if not paths:
            return
        count = f"{len(paths)} value{'' if len(paths) == 1 else 's'}"
        yield self.meta.finding(
            Status.INFO,
            f'{count} stayed "auto": DeepSpeed took its own default.'
            if settings.has_run
            else f'{count} {"is" if len(paths) == 1 else "are"} "auto" ({named_keys(paths)}): '
            "valid only through transformers or accelerate.",
            action='Set values if you use DeepSpeed directly: for "auto" it silently takes its '
            "default, or ends with an error.",
            evidence=(settings.table([(p, _meaning(settings, p)) for p in paths], remark="means"),),
            confidence="high",
        )


def _meaning(settings: EngineSettings, path: str) -> str:
    if not settings.has_run:
        if fate_of_auto(path, settings.release) == "filled":
            return "filled in from the arguments of the trainer"
        return "not filled in: accelerate ends with an error"
    value = settings.in_force(path)
    return "DeepSpeed's default" if value is None else f"{value}, the default"
