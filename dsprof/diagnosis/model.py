"""Diagnosis: the one value that every report shows.

The JSON form is a stable interface: fields are added, never renamed, within a `schema_version`.
Times are nanoseconds, sizes bytes, bandwidths bytes per second; null means "not measurable here".
"""

from __future__ import annotations

import msgspec

from dsprof.analysis.hang.model import HangReport
from dsprof.diagnosis.parts.communication import (
    ArrivalInfo,
    BaselineInfo,
    BucketFill,
    CallSiteRow,
    CommunicationRow,
    CopyRow,
    ExpectedCurve,
    FetchRow,
    FlushRow,
    TransferRow,
)
from dsprof.diagnosis.parts.environment import EnvironmentInfo
from dsprof.diagnosis.parts.epochs import Epochs
from dsprof.diagnosis.parts.history import History, TimeSpans
from dsprof.diagnosis.parts.logs import FlightRow, LoggedCallRow, LoggedFact, LogMarkRow
from dsprof.diagnosis.parts.memory import RankMemory, SnapshotRow
from dsprof.diagnosis.parts.run import Headline, Quality, RuleInfo, RunInfo, ThresholdInfo, Tile
from dsprof.diagnosis.parts.steps import (
    AnnotationRow,
    DeviceRow,
    StepMap,
    Steps,
    Throughput,
    UtilisationInfo,
    WaitMatrix,
)
from dsprof.diagnosis.parts.timelines import Timeline, TimelinePlace
from dsprof.diagnosis.parts.topology import PeerTraffic, Topology
from dsprof.findings.finding import Finding, Table

SCHEMA_VERSION = 1


class Diagnosis(msgspec.Struct):
    """A run, its costs and their causes."""

    run: RunInfo
    quality: Quality
    steps: Steps
    schema_version: int = SCHEMA_VERSION
    dsprof_version: str = ""
    verdict: str = ""  # one sentence
    headline: Headline = msgspec.field(default_factory=Headline)
    next_lines: list[Headline] = []  # the next two problems
    kind: str = ""  # what was given: "training", "hang", "snapshot", "log", "device", "collectives"
    tiles: list[Tile] = []  # the figures that matter for this kind
    findings: list[Finding] = []  # most valuable first; every rule at least once
    communication: list[CommunicationRow] = []
    call_sites: list[CallSiteRow] = []  # the most exposed first
    devices: list[DeviceRow] = []  # ranks whose traces have device times
    hang: HangReport | None = None  # where a hang or crash is known
    flights: list[FlightRow] = []  # groups with something in flight, where dumps were given
    flushes: list[FlushRow] = []
    bucket_fill: BucketFill | None = None  # where buckets have a capacity
    fetches: list[FetchRow] = []
    copies: list[CopyRow] = []
    annotations: list[AnnotationRow] = []
    memory: list[RankMemory] = []  # of more than 64 ranks, those with extremes
    snapshots: list[SnapshotRow] = []
    environment: EnvironmentInfo = msgspec.field(default_factory=EnvironmentInfo)
    logged: list[LoggedFact] = []
    logged_calls: list[LoggedCallRow] = []
    log_marks: list[LogMarkRow] = []  # the first 500, in the order of the log
    timelines: list[Timeline] = []
    timeline_places: list[TimelinePlace] = []
    waits: WaitMatrix = msgspec.field(default_factory=WaitMatrix)
    step_map: StepMap = msgspec.field(default_factory=StepMap)
    role_maps: list[StepMap] = []  # of more than 64 ranks, by their places in groups
    arrivals: ArrivalInfo = msgspec.field(default_factory=ArrivalInfo)
    peer_traffic: PeerTraffic = msgspec.field(default_factory=PeerTraffic)
    topology: Topology = msgspec.field(default_factory=Topology)
    history: History = msgspec.field(default_factory=History)
    time_spans: TimeSpans = msgspec.field(default_factory=TimeSpans)
    epochs: Epochs = msgspec.field(default_factory=Epochs)
    thresholds: list[ThresholdInfo] = []
    rules: list[RuleInfo] = []
    baseline: BaselineInfo | None = None
    transfers: list[TransferRow] = []
    expected_curves: list[ExpectedCurve] = []
    utilisation: UtilisationInfo = msgspec.field(default_factory=UtilisationInfo)
    throughput: Throughput = msgspec.field(default_factory=Throughput)

    @property
    def asked_and_sent(self) -> Table | None:
        """Requested traffic beside what was sent; None if not compared."""
        found = (f for f in self.findings if f.rule == "unexplained-traffic")
        return next((table for finding in found for table in finding.evidence), None)

    def threshold(self, rule: str, name: str) -> float | None:
        """Return a threshold that is in force; None if there is none, or it is no number."""
        values = (one.value for one in self.thresholds if (one.rule, one.name) == (rule, name))
        value = next(values, None)
        return value if isinstance(value, (int, float)) else None
