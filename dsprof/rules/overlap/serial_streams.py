"""serial-streams: communication runs on the stream that computes, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.device import Device
from dsprof.analysis.aggregates.streams import Streams
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import percent
from dsprof.rules.causes import EXPOSED
from dsprof.rules.reasons import EVENTS_MISSING
from dsprof.rules.rule import Rule, RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When shared streams matter."""

    shared_share: float = 0.5  # of the time of communication kernels
    exposed_share: float = 0.1  # of the measured steps, or of the time recorded
    severe_share: float = 0.4  # from here on the rule fails


class SerialStreams(Rule):
    """Looks at profiles: of what dsprof itself records, low-comm-overlap tells the same."""

    meta = RuleMeta(
        id="serial-streams",
        title="Communication runs on separate streams, or costs little",
        failing_title="Communication and computation take turns on one stream",
        why="A stream runs its work in order: communication on the compute stream cannot overlap "
        "with computation.",
        category="overlap",
        order=150,
        needs=(Device, Streams),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Compare communication on computing streams with all of it."""
        device, streams = run[Device], run[Streams]
        if device.ranks and not device.complete:
            yield self.meta.unknown(EVENTS_MISSING)
            return
        if not streams.communication_ns:
            yield self.meta.not_applicable("No trace holds times of communication kernels.")
            return
        exposed = device.share("exposed_ns")
        summary = (
            f"{percent(streams.shared_share)} of communication runs on streams that also compute; "
            f"{percent(exposed)} of {device.window} is exposed communication."
        )
        if streams.shared_share < thresholds.shared_share or exposed < thresholds.exposed_share:
            yield self.meta.finding(Status.PASS, summary)
        else:
            yield self._judged(streams, summary, exposed >= thresholds.severe_share)

    def _judged(self, streams: Streams, summary: str, severe: bool) -> Finding:
        return self.meta.finding(
            Status.FAIL if severe else Status.INFO,
            summary,
            severity=Severity.MEDIUM,
            cause="The collectives are synchronous calls, which torch runs on the current stream "
            "(since 2.8 for NCCL). Those of tensor parallelism must be: their result is needed at "
            "once.",
            action="For gradients and parameters, set overlap_comm of DeepSpeed, or use the "
            "buckets and prefetching of DDP or FSDP. In your own code pass async_op=True and "
            "wait where the result is first needed.",
            restates=EXPOSED,
            evidence=(
                Table(
                    columns=(
                        Column("communication kernels, all ranks", "ns"),
                        Column("on streams that compute", "ns"),
                        Column("streams with communication, most of a rank", "count"),
                    ),
                    rows=((streams.communication_ns, streams.shared_ns, streams.most_streams),),
                ),
            ),
            confidence="medium",
        )
