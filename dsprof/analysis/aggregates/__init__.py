"""The aggregates of a run; one more is its file and a line here."""

from __future__ import annotations

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.buffers import Buffers
from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.copies import Copies
from dsprof.analysis.aggregates.device import Device
from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.fetches import Fetches
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.flushes import Flushes
from dsprof.analysis.aggregates.host_waits import HostWaits
from dsprof.analysis.aggregates.idle_causes import IdleCauses
from dsprof.analysis.aggregates.intent import Intent
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.aggregates.memory import Memory
from dsprof.analysis.aggregates.models import Models
from dsprof.analysis.aggregates.overlap import Overlap
from dsprof.analysis.aggregates.phases import Phases
from dsprof.analysis.aggregates.pipelines import Pipelines
from dsprof.analysis.aggregates.placement import Placement
from dsprof.analysis.aggregates.point_to_point import PointToPoint
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.snapshots import Snapshots
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.streams import Streams
from dsprof.analysis.aggregates.timelines import Timelines
from dsprof.analysis.aggregates.traffic import Traffic
from dsprof.analysis.aggregates.wait_causes import WaitCauses
from dsprof.analysis.aggregates.wire_dtypes import WireDtypes
from dsprof.analysis.summary import Aggregate

AGGREGATES: tuple[type[Aggregate], ...] = (
    Run,
    Engines,
    Models,
    EnvironmentFacts,
    Logs,
    Steps,
    Communication,
    Traffic,
    Intent,
    Placement,
    WireDtypes,
    PointToPoint,
    Pipelines,
    Streams,
    HostWaits,
    IdleCauses,
    WaitCauses,
    Phases,
    Overlap,
    Arrivals,
    Device,
    Flushes,
    Fetches,
    Copies,
    Memory,
    Buffers,
    Snapshots,
    FlightRecorders,
    Endings,
    Timelines,
    BaselineCosts,
)
