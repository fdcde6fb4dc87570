"""comms-logger-enabled: DeepSpeed's own communication logger runs along."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.summary import RunSummary
from dsprof.rules.rule import Column, Finding, NoThresholds, RuleMeta, Severity, Status, Table

_FIRST_CUMULATIVE = (0, 18, 3)
_LAST_CUMULATIVE = (0, 19, 8)
"""Releases of DeepSpeed, ends included, whose logged latencies are sums over all calls so far."""


class CommsLoggerEnabled:
    """Looks for a `comms_logger` block in the DeepSpeed configuration."""

    meta = RuleMeta(
        id="comms-logger-enabled",
        title="DeepSpeed's comms_logger is off",
        failing_title="DeepSpeed's comms_logger is on",
        why="The logger synchronises the device after every operation, so that no communication "
        "overlaps with computation, and it keeps every latency for ever.",
        category="configuration",
        needs=(EnvironmentFacts,),
    )
    thresholds = NoThresholds()

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report a logger that the configuration turns on, on purpose or by its mere presence."""
        facts = run[EnvironmentFacts]
        engine = facts.first_engine
        if engine is None:
            yield self.meta.finding(Status.NOT_APPLICABLE, "No DeepSpeed engine was recorded.")
            return
        if not engine.written:
            unread = "The DeepSpeed configuration as written was not recorded."
            yield self.meta.finding(Status.UNKNOWN, unread)
            return
        if "comms_logger" in engine.written:
            yield self._running(facts, engine.written["comms_logger"])

    def _running(self, facts: EnvironmentFacts, block: object) -> Finding:
        by_mistake = isinstance(block, dict) and not block.get("enabled", False)
        summary = "DeepSpeed's comms_logger runs along"
        if by_mistake:
            summary += ' although "enabled" is not true: the block alone turns it on'
        versions = ", ".join(sorted(facts.versions.get("deepspeed", {})))
        notes = [("every operation is followed by a device synchronisation", facts.uses_gpu)]
        notes.append(("each logged latency is a sum of all before it", _is_cumulative(versions)))
        notes.append(("every latency is kept in memory until the run ends", True))
        return self.meta.finding(
            Status.FAIL,
            f"{summary}.",
            severity=Severity.HIGH if facts.uses_gpu else Severity.LOW,
            cause="In DeepSpeed the presence of the key decides, not the value of enabled."
            if by_mistake
            else "The DeepSpeed configuration asks for it.",
            action="Delete the whole comms_logger block; do not set it to null or enabled: false.",
            evidence=(
                Table(
                    (Column("effect"), Column("in this run")),
                    tuple((text, "yes" if holds else "no") for text, holds in notes),
                    caption=f"DeepSpeed {versions or '(version unknown)'}",
                ),
            ),
            confidence="high",
        )


def _is_cumulative(version: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None:
        return False
    return _FIRST_CUMULATIVE <= tuple(map(int, numbers.groups())) <= _LAST_CUMULATIVE


RULE = CommsLoggerEnabled()
