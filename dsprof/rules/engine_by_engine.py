"""Judges several DeepSpeed engines of one process each by its own settings and traffic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.traffic import Traffic
from dsprof.findings.finding import Finding


class EngineTraffic(NamedTuple):
    """One engine, or the whole run where the engine of a call is unknown."""

    engines: Engines
    traffic: Traffic
    number: int = -1  # of several
    trains: bool = True
    steps_share: float = 1.0  # its own, of all steps

    def named(self, findings: Iterable[Finding]) -> Iterable[Finding]:
        """Say of findings which of several engines they are about, and spread what they save.

        A saving is that of the mean step, whichever engine takes it.
        """
        if self.number < 0:
            return findings
        return of_engine(self.number, map(self._spread, findings))

    def _spread(self, finding: Finding) -> Finding:
        share, saved_ms = self.steps_share, finding.saving_ms_per_step
        saved_bytes = finding.saving_bytes_per_step
        return replace(
            finding,
            saving_ms_per_step=saved_ms and (saved_ms[0] * share, saved_ms[1] * share),
            saving_bytes_per_step=saved_bytes and round(saved_bytes * share),
        )


def of_engine(number: int, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Say of findings that they are about this one of several engines."""
    for finding in findings:
        yield replace(finding, summary=f"Engine {number}: {finding.summary}")


def engine_by_engine(engines: Engines, traffic: Traffic) -> list[EngineTraffic]:
    """Return each engine with what it sent; those that sent nothing are left out."""
    if not traffic.turns:
        return [EngineTraffic(engines, traffic)]
    apart = [
        EngineTraffic(
            one,
            mine,
            number,
            number in traffic.turns,
            mine.rank_steps / max(traffic.rank_steps, 1),
        )
        for one in engines.each
        for number in (one.engines[0].engine,)
        for mine in (traffic.of_engine(number),)
    ]
    return [one for one in apart if one.traffic.uses]
