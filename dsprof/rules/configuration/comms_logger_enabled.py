"""comms-logger-enabled: DeepSpeed's own communication logger is on."""

from __future__ import annotations

from collections.abc import Iterable

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.rules.knowledge.releases import release
from dsprof.rules.reasons import NO_ENGINE, NO_WRITTEN_CONFIG
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta

_FIRST_CUMULATIVE = (0, 18, 3)
_LAST_CUMULATIVE = (0, 19, 8)
"""Releases of DeepSpeed, ends included, whose logged latencies are sums over all calls so far."""


_ERRORS = (
    (
        "times, 0.18.3 to 0.19.8",
        "each is the sum of all before it under the same name (#7714)",
        "single lines are corrected; a summary gives only counts and sizes",
    ),
    ("algbw of all_reduce", "twice bytes / time", "computed anew"),
    (
        "algbw and busbw of reduce_scatter",
        "the size, which is of all ranks, is multiplied by their number again",
        "computed anew",
    ),
    ("busbw", "of the world's size, whatever the group", "the same: it does not log groups"),
    ("average", "leaves out a tenth of the calls at either end", "mean of all calls"),
    ("MB, KB", "units of 1024", "bytes, to its two decimals"),
    ("asynchronous operations on CPUs", "timed at their launch only", "cannot be distinguished"),
    ("straggler times", "too small before #8199, August 2026", "as they are"),
)
"""Errors in the logger's figures; the first row holds for some releases only."""


class CommsLoggerEnabled(Rule):
    """Looks for a `comms_logger` block in the DeepSpeed configuration."""

    meta = RuleMeta(
        id="comms-logger-enabled",
        title="DeepSpeed's comms_logger is off",
        failing_title="DeepSpeed's comms_logger is on",
        why="The logger synchronises the device after every operation, so that no communication "
        "overlaps with computation, and it keeps every latency in memory.",
        category="configuration",
        order=520,
        needs=(Engines, EnvironmentFacts, Logs),
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report a logger that the configuration turns on, on purpose or by its mere presence."""
        facts = run[EnvironmentFacts]
        written = [engine.written for engine in run[Engines].known]
        if run[Logs].calls():
            yield self._heard(run[Logs], facts)
            return
        if run[Engines].main is None:
            yield self.meta.not_applicable(NO_ENGINE)
            return
        if not written:
            yield self.meta.unknown(NO_WRITTEN_CONFIG)
            return
        # The logger is one for all engines of a process.
        blocks = [one["comms_logger"] for one in written if "comms_logger" in one]
        if blocks:
            yield self._running(facts, blocks[0])

    def _heard(self, logs: Logs, facts: EnvironmentFacts) -> Finding:
        """Say what its output proves: that it ran, and which of its figures are wrong."""
        wrong = next((log.comms_logger for log in logs.ranks.values() if log.comms_logger), "")
        lost = any(calls.total_ns is None for calls in logs.calls().values())
        remedies = _ERRORS if wrong else _ERRORS[1:]
        return self.meta.finding(
            Status.FAIL,
            "DeepSpeed's comms_logger was on: its output is in the logs."
            + (f" {wrong}" + (", beyond repair in its summary." if lost else ".") if wrong else ""),
            severity=Severity.HIGH if facts.uses_gpu else Severity.LOW,
            cause="The logger waits for the device after every operation.",
            action="Delete the whole comms_logger block; do not set it to null or enabled: false.",
            evidence=(
                Table(
                    (Column("what it prints"), Column("what is wrong"), Column("here")),
                    remedies,
                    caption="Known errors of its figures",
                ),
            ),
            confidence="high",
        )

    def _running(self, facts: EnvironmentFacts, block: object) -> Finding:
        by_mistake = isinstance(block, dict) and not block.get("enabled", False)
        summary = "DeepSpeed's comms_logger is on"
        if by_mistake:
            summary += ' although "enabled" is not true: the presence of the block turns it on'
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
    numbers = release(version)
    return numbers is not None and _FIRST_CUMULATIVE <= numbers <= _LAST_CUMULATIVE
