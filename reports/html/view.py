"""The page's view of a diagnosis, beside the diagnosis itself."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import msgspec

from dsprof.analysis.aggregates.timelines import RANKS
from dsprof.analysis.hang.model import HangVerdict
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.run import Headline, ThresholdInfo
from dsprof.diagnosis.parts.timelines import Timeline, TimelinePlace
from dsprof.diagnosis.quality_lines import quality_lines
from dsprof.findings.finding import Finding, Status
from dsprof.reports import content
from dsprof.reports.html import hangs
from dsprof.reports.html.bandwidth_drawing import bandwidth_drawing
from dsprof.reports.html.bucket_drawing import bucket_drawing
from dsprof.reports.html.drawing import Drawing
from dsprof.reports.html.epoch_drawing import epoch_drawing
from dsprof.reports.html.flame_graph import held_memory, waiting_lines
from dsprof.reports.html.heat_map import heat_map
from dsprof.reports.html.history_drawing import history_drawing, time_drawings
from dsprof.reports.html.log_drawing import log_drawing
from dsprof.reports.html.matrix import traffic_matrix, wait_matrix
from dsprof.reports.html.memory_drawing import memory_drawing
from dsprof.reports.html.snapshot_drawing import snapshot_drawing
from dsprof.reports.html.step_drawings import step_bar, step_columns
from dsprof.reports.html.timeline_drawing import MAX_BARS, WHOLES, timeline_drawing
from dsprof.reports.html.topology_drawing import topology_drawing

MAX_STEP_BARS = 120
_MOST_GRAPHS = 4

_STEPS = {
    "worst": "Longest measured step",
    "median": "Step near the median",
    "first": "First measured step",
    "chosen": "Chosen step",
}
_PICKS = ("worst", "median", "first")
_ONLY_LIVE = ("sample", "named")
_CHECKS = {
    Status.PASS: "passed",
    Status.NOT_APPLICABLE: "not applicable",
    Status.UNKNOWN: "unknown",
    Status.ERROR: "failed to run",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A finding, and the address of its place on the page."""

    anchor: str
    finding: Finding
    place: TimelinePlace | None = None


@dataclass(frozen=True, slots=True)
class StepDetail:
    """A step in detail, drawn."""

    step: Timeline
    drawing: Drawing
    left_out: int  # bars

    @property
    def title(self) -> str:
        """Which step it is."""
        why = self.step.why
        return WHOLES.get(why) or f"{_STEPS.get(why, why.capitalize())}, {self.step.step}"


class View:
    """Findings with addresses, checks by outcome, and the drawings."""

    def __init__(self, diagnosis: Diagnosis, *, is_static: bool = False) -> None:
        self._diagnosis = diagnosis
        self.carried = [step for step in diagnosis.timelines if step.bars]
        self.picks = [step for step in self.carried if step.why in _PICKS]
        self.is_live = bool(self.carried) and not is_static
        run, is_recorded = diagnosis.run, diagnosis.quality.is_recorded
        self.run_line = content.run_line(run, is_recorded=is_recorded) + content.started(run)
        self.starts = content.starts(diagnosis.run, diagnosis.epochs)
        self.quality = list(quality_lines(diagnosis))
        self.step = content.typical_step(diagnosis.steps)
        self.bars = content.step_bars(diagnosis.steps.rows, MAX_STEP_BARS)
        self._shown = list(_shown(diagnosis))
        self.failed = [one for one in self._shown if one.finding.status is Status.FAIL]
        self.notes = [one for one in self._shown if one.finding.status is Status.INFO]
        self.checks = [
            (label, found)
            for status, label in _CHECKS.items()
            if (found := [one for one in self._shown if one.finding.status is status])
        ]
        self.has_communication = bool(diagnosis.communication)
        self.has_memory = bool(diagnosis.memory or diagnosis.snapshots)
        self.rules = {about.rule: about for about in diagnosis.rules}
        self._draw(diagnosis)

    def _draw(self, diagnosis: Diagnosis) -> None:
        """Draw what has anything to show; the others are None, or empty."""
        is_split = self.step.total_ns and self.step.is_split
        self.step_bar = step_bar(self.step) if is_split else None
        self.heat_map = heat_map(diagnosis.step_map)
        self.role_maps = [*filter(None, map(heat_map, diagnosis.role_maps))]
        self.history = history_drawing(diagnosis.history)
        self.history_map = heat_map(diagnosis.history.map)
        self.time_spans = [*time_drawings(diagnosis.time_spans)]
        self.epochs = epoch_drawing(diagnosis.epochs)
        self.bucket_fill = bucket_drawing(diagnosis.bucket_fill)
        self.bandwidth = bandwidth_drawing(diagnosis.transfers, diagnosis.expected_curves)
        self.wait_matrix = wait_matrix(diagnosis.arrivals.pairs)
        self.traffic_matrix = traffic_matrix(diagnosis.peer_traffic)
        self.topology = topology_drawing(diagnosis.topology)
        self.log = log_drawing(diagnosis.log_marks)
        self.hang = hangs.picture(diagnosis.hang) if diagnosis.hang else None
        self.memory = memory_drawing(diagnosis.memory)
        # Where there are steps, a table says it.
        self.snapshot = snapshot_drawing(diagnosis.snapshots) if not self.step.total_ns else None
        fullest = sorted(diagnosis.snapshots, key=lambda row: -row.reserved_bytes)
        held = ((held_memory(row), row) for row in fullest)
        self.held_memory = [*islice(((graph, row) for graph, row in held if graph), _MOST_GRAPHS)]
        waits = [row for row in diagnosis.call_sites if row.exposed_ns]
        # A single row says the same in words.
        self.waiting_lines = waiting_lines(waits) if len(waits) > 1 else None

    @property
    def following(self) -> list[tuple[Headline, str]]:
        """The problems that the first screen names below the first, each with its address."""
        return [(one, self.address(one)) for one in self._diagnosis.next_lines]

    @property
    def unnamed(self) -> int:
        """How many problems the first screen does not name."""
        said = [self._diagnosis.headline, *self._diagnosis.next_lines]
        named = {self.address(one) for one in said}
        return sum(one.anchor not in named for one in self.failed)

    @property
    def flaws(self) -> list[str]:
        """What makes figures wrong, unless a line above says it."""
        said = {one.problem for one in (self._diagnosis.headline, *self._diagnosis.next_lines)}
        return [limit for limit in self._diagnosis.quality.limits if limit not in said]

    def address(self, headline: Headline) -> str:
        """Return where the finding of a headline is; "" where it is of none."""
        found = self._finding_of(headline)
        return found.anchor if found else ""

    @property
    def lead(self) -> Shown | None:
        """The finding that the headline says; None where it is of none."""
        return self._finding_of(self._diagnosis.headline)

    def _finding_of(self, headline: Headline) -> Shown | None:
        alike = [one for one in self._shown if one.finding.rule == headline.rule]
        exact = [one for one in alike if one.finding.problem == headline.problem]
        return next(iter(exact or alike), None)

    def telling(self, verdict: HangVerdict) -> Shown | None:
        """Return the problem that says what a verdict on a hang says."""
        for one in self.failed if verdict.sentence else ():
            found = one.finding
            if verdict.sentence in found.summary and verdict.cause.text in found.cause:
                return one
        return None

    @cached_property
    def limits(self) -> dict[str, list[ThresholdInfo]]:
        """Thresholds in force, by rule."""
        limits: dict[str, list[ThresholdInfo]] = defaultdict(list)
        for limit in self._diagnosis.thresholds:
            limits[limit.rule].append(limit)
        return limits

    @property
    def ranks_differ_in_steps(self) -> bool:
        """Whether some ranks kept fewer steps than others."""
        history, kept = self._diagnosis.history, len(self._diagnosis.steps.rows)
        has_fewer = bool(history.steps) and history.detailed_steps < kept
        return bool(self._diagnosis.quality.partial_ranks) or has_fewer

    @cached_property
    def column_bars(self) -> list[content.StepBar]:
        """All steps, or those of the map below, so that both share one axis."""
        if self.heat_map is None:
            return self.bars
        first = self._diagnosis.step_map.steps[0][0]
        rows = [row for row in self._diagnosis.steps.rows if (row.step or 0) >= first]
        return content.step_bars(rows, MAX_STEP_BARS)

    @cached_property
    def step_columns(self) -> Drawing | None:
        """Each step; None for a single one."""
        least = 2 if self.heat_map is None else 1
        return step_columns(self.column_bars) if len(self.column_bars) >= least else None

    @property
    def some_lack_compute(self) -> bool:
        """Whether compute is known of some of the columns only, as where steps are counted."""
        parts = [part for bar in self.column_bars for part in bar.parts if part.key == "compute"]
        return len({part.ns is None for part in parts}) == 2

    def _framed(self, step: Timeline) -> frozenset[int]:
        """Return the stragglers of a step; of a dump, the ranks of its first finding."""
        if step.why == "dump":
            places = [one for one in self._diagnosis.timeline_places if one.step == step.step]
            return frozenset(places[0].ranks if places else ())
        return frozenset(
            mark.rank
            for mark in self._diagnosis.step_map.marks
            if mark.kind == "straggler" and mark.rank is not None and mark.step == step.step
        )

    @property
    def facts(self) -> Diagnosis:
        """What the page carries as JSON: a static one only the steps that it draws."""
        if self.is_live:
            return self._diagnosis
        drawn = {step.step for step in self._still}
        places = [place for place in self._diagnosis.timeline_places if place.step in drawn]
        return msgspec.structs.replace(
            self._diagnosis, timelines=self._still, timeline_places=places
        )

    @property
    def _still(self) -> list[Timeline]:
        """The worst, the median and the first step, or the one that was chosen."""
        return [step for step in self.carried if step.why not in _ONLY_LIVE]

    @cached_property
    def timelines(self) -> list[StepDetail]:
        """Drawings of steps, for pages and readers without scripts."""
        return [
            StepDetail(
                step,
                timeline_drawing(step, self._framed(step)),
                step.left_out + max(len(step.bars) - MAX_BARS, 0),
            )
            for step in self._still
        ]

    @cached_property
    def undrawn_ranks(self) -> list[int]:
        """Ranks that the timelines do not show; none where other pages have one rank each."""
        drawn = {bar.rank for step in self.carried for bar in step.bars}
        return [rank for rank in self._diagnosis.run.ranks if rank not in drawn and len(drawn) > 1]

    @property
    def has_room_for_all(self) -> bool:
        """Whether the timelines show every rank that has anything to draw."""
        return len(self._diagnosis.run.ranks) <= RANKS

    @property
    def begins_with_times(self) -> bool:
        """Whether the first screen draws what ranks without steps did."""
        return bool(self.time_spans) and not (self.hang or self.step_columns)

    @property
    def begins_with_history(self) -> bool:
        """Whether the steps in detail are only the newest ones, and a map shows all."""
        return bool(self._diagnosis.history.newest_from and self.history_map)

    @property
    def begins_with_epochs(self) -> bool:
        """Whether the first screen is about restarts, and shows them."""
        return self._diagnosis.headline.rule == "restarted-job" and self.epochs is not None


def _shown(diagnosis: Diagnosis) -> Iterator[Shown]:
    """Give each finding the id of its rule as address; later ones of a rule are numbered."""
    seen: Counter[str] = Counter()
    places = {place.finding: place for place in diagnosis.timeline_places}
    for index, finding in enumerate(diagnosis.findings):
        seen[finding.rule] += 1
        number = f"-{seen[finding.rule]}" if seen[finding.rule] > 1 else ""
        yield Shown("-".join(finding.rule.split()) + number, finding, places.get(index))
