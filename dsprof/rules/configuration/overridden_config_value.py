"""overridden-config-value: what is in force is not what the configuration says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dsprof.analysis.aggregates.engines import Engines
from dsprof.files.redaction import REDACTED
from dsprof.findings.finding import Finding, Status
from dsprof.rules.configuration.config_rule import ConfigRule
from dsprof.rules.configuration.engine_settings import EngineSettings, named_keys
from dsprof.rules.knowledge.deepspeed.keys import AUTO, retired
from dsprof.rules.rule import NoThresholds, RuleMeta

_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}


class OverriddenConfigValue(ConfigRule):
    """Compares written values with those in force."""

    meta = RuleMeta(
        id="overridden-config-value",
        title="All written values are in force",
        failing_title="A written value is not in force",
        why="Code of a trainer, or DeepSpeed itself, replaces settings after the file was read; "
        "changes to the file then have no effect.",
        category="configuration",
        order=580,
        needs=(Engines,),
    )

    def judge(self, settings: EngineSettings, thresholds: NoThresholds) -> Iterable[Finding]:
        """List values that were replaced before the first forward pass."""
        if not settings.has_run:
            yield self.meta.not_applicable(
                "Not applicable: no engine was created from this configuration."
            )
        elif found := list(_overridden(settings)):
            yield self.meta.finding(
                Status.INFO,
                "; ".join(f"{path} is {shown}" for path, shown in found[:2])
                + (f"; {len(found) - 2} more differ." if len(found) > 2 else "."),
                cause=f"Code replaced {named_keys([path for path, _ in found])} after the "
                "configuration was read.",
                action="Find the code that sets it: a trainer, a launcher, DeepSpeed itself.",
                evidence=(settings.table(found, remark="in force"),),
                confidence="high",
            )


def _overridden(settings: EngineSettings) -> Iterator[tuple[str, str]]:
    for path, written in settings.paths():
        if isinstance(written, Mapping) or written in (None, AUTO, REDACTED) or path in retired():
            continue
        recorded = settings.recorded(path)
        if recorded not in (None, REDACTED) and not _is_same(written, recorded):
            yield path, json.dumps(recorded)


def _is_same(written: Any, recorded: Any) -> bool:
    if isinstance(written, str):
        if isinstance(recorded, str):  # DeepSpeed writes names of optimizers in small letters
            return recorded.lower() in (written.lower(), _DTYPES.get(written.lower()))
        return bool(recorded == [written])
    return bool(written == recorded)
