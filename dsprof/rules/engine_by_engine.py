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

    def named(self, findings: Iterable[Finding]) -> Iterable[Finding]:
        """Say of findings which of several engines they are about."""
        return findings if self.number < 0 else of_engine(self.number, findings)


def of_engine(number: int, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Say of findings that they are about this one of several engines."""
    for finding in findings:
        yield replace(finding, summary=f"Engine {number}: {finding.summary}")


def engine_by_engine(engines: Engines, traffic: Traffic) -> list[EngineTraffic]:
    """Return each engine with what it sent; those that sent nothing are left out."""
    if not traffic.turns:
        return [EngineTraffic(engines, traffic)]
    apart = [
        EngineTraffic(one, traffic.of_engine(number), number, number in traffic.turns)
        for one in engines.each
        for number in (one.engines[0].engine,)
    ]
    return [one for one in apart if one.traffic.uses]
