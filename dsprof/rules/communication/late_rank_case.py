"""What late-rank judges: who came last in which steps, what that costs, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.lateness import Lateness
from dsprof.analysis.run.votes import CHANCE, LEAST_S, STEP_SHARE, Together, Votes
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Severity
from dsprof.findings.wording import duration, percent

_MOST = 0.8
"""Steps that vote for a rank are all that it delays if they make so much of its cost."""
_KNOWN_SHARE = 0.9
"""With fewer of the measured steps, a sentence does not speak of every step."""
_EVERY = "every step"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a rank is called late, in recorded runs and in profiles."""

    communication_ratio: float = 0.6  # of a profile: its time in collectives / that of any other
    waited_share: float = 0.02  # of a profile's measured steps: what the others wait for it
    severe_share: float = 0.3
    cause_share: float = 0.6  # of the lateness, that one part of a rank's own time must explain
    step_share: float = STEP_SHARE  # of the step: what the others wait for it, in a trace of dsprof
    turns_share: float = 0.25  # of the step: waits for ranks that take turns are worth a remark
    chance: float = CHANCE  # of so many votes for one rank if all were alike
    seconds: float = LEAST_S  # of measured steps together: programs beside hold a processor so long
    medium_share: float = 0.1

    def severity(self, share: float) -> Severity:
        """Return how severe it is that the others wait for so much of a step."""
        if share >= self.severe_share:
            return Severity.HIGH
        return Severity.MEDIUM if share >= self.medium_share else Severity.LOW


class Known(NamedTuple):
    """In how many of the compared steps it is known who comes last."""

    steps: int
    of: int
    measured: int
    silent: int  # measured steps without a collective
    calls: int  # of the collectives of a step, one in so many is compared

    @property
    def share(self) -> float:
        """Savings are per measured step."""
        return 1.0 if self.is_all else self.steps / self.of

    @property
    def is_all(self) -> bool:
        """Whether a sentence may speak of every step."""
        return self.steps >= _KNOWN_SHARE * self.of

    @property
    def named(self) -> str:
        """Name the steps."""
        return _EVERY if self.is_all else f"{self.steps:,} of {self.of:,} steps"

    @property
    def note(self) -> str:
        """Say what is compared, and of how many steps this is unknown; may be empty."""
        note, kind = "", "measured"
        if self.of < self.measured:
            note = f" Of {self.measured:,} measured steps a sample of {self.of:,} is compared."
            kind = "compared"
        if self.calls > 1:
            note += f" Of the collectives of a step one in {self.calls} is compared."
        if self.is_all:
            return note
        others = f" In the other {self.of - self.steps:,} {kind} steps"
        are_silent = self.silent >= self.of - self.steps and self.of == self.measured
        return f"{note}{others} {'no rank communicates' if are_silent else 'this is unknown'}."


class Case(NamedTuple):
    """The steps of ranks whose work is alike, their votes on who came last, and the limits."""

    run: RunSummary
    late: Lateness
    votes: Votes
    step_ns: float
    thresholds: Thresholds

    @property
    def least_ns(self) -> float:
        """What the others wait in a step at least, for a rank to be called late."""
        return self.thresholds.step_share * self.step_ns

    @property
    def rank(self) -> int:
        """The rank that is late in most steps."""
        return self.votes.ranks[self.votes.leader]

    @property
    def measured_steps(self) -> int:
        """How many steps are measured, compared or not."""
        return len(self.run[Steps].measured)

    @property
    def recorded(self) -> str:
        """Say how long the measured steps last together."""
        return duration(self.step_ns * self.measured_steps)

    @property
    def is_brief(self) -> bool:
        """Whether another program may hold a processor for as long as the measured steps last."""
        return self.step_ns * self.measured_steps < self.thresholds.seconds * 1e9

    def share(self, ns: float) -> float:
        """Return a time as a share of the step."""
        return ns / self.step_ns

    def known(self, steps: int | None = None) -> Known:
        """Say in how many steps it is known who comes last; by default in those with votes."""
        late, measured = self.late, self.run[Steps].measured
        # Where some calls of a step are compared, a step without any is one of the sample, too.
        steps = self.votes.steps if steps is None else steps
        silent = sum(not self.run[Steps].parts[number].calls for number in measured)
        known = steps if late.calls == 1 else late.compared
        return Known(known, late.compared, late.asked, silent, late.calls)

    def steps_of(self, count: int) -> str:
        """Say so many steps, and that they are of a sample."""
        return f"{count:,} {'steps' if self.late.one_in == 1 else 'compared steps'}"

    @property
    def steps_of_none(self) -> str:
        """Say in how many steps no single rank is beyond doubt late; empty if in none."""
        if not (none := self.votes.steps - self.votes.cast):
            return ""
        return f"; in {none:,} of {self.steps_of(self.votes.steps)} no single rank stands out"

    @property
    def delay(self) -> str:
        """Say which steps the leader delays, and by how much: few delays if these make the mean."""
        votes, known, mean = self.votes, self.known(), duration(self.votes.cost_ns)
        share = percent(self.share(votes.cost_ns))
        is_of_most = votes.is_of_most and known.is_all
        if not votes.is_uneven and (votes.is_of_all or is_of_most):
            named = known.named if votes.is_of_all else "most steps"
            return f"{named} by {mean} ({share})"
        count = int(votes.votes[votes.leader])
        are_all = count * int(votes.voted_ns[votes.leader]) >= _MOST * votes.cost_ns * votes.steps
        if known.calls > 1 or not (are_all or is_of_most):
            return f"a step by {mean} on average ({share})"
        if votes.is_uneven and is_of_most:
            return f"most steps by {duration(int(votes.usual_ns[votes.leader]))} (mean {mean})"
        of = self.steps_of(votes.steps if known.is_all else known.of)
        delay = duration(int(votes.voted_ns[votes.leader]))
        return f"{count:,} of {of} by {delay}"

    def common_delay(self, several: Together) -> str:
        """Say which steps ranks delay together, and by how much."""
        known, mean = self.known(several.of), duration(several.cost_ns)
        share = percent(self.share(several.cost_ns))
        if several.is_of_all:
            return f"{known.named} by {mean} ({share})"
        if known.calls > 1:
            return f"a step by {mean} on average ({share})"
        each_ns = several.cost_ns * several.of // several.steps
        return f"{several.steps:,} of {several.of:,} steps by {duration(each_ns)}"

    @property
    def accuracy(self) -> str:
        """Say how accurate arrival times are, and what that means; empty if they are exact."""
        late = self.late
        if late.clocks_ns:
            return (
                f"; blocked times are compared, because arrival times are accurate only to "
                f"{duration(late.clocks_ns)}"
            )
        accurate = f"; arrival times are accurate to {duration(late.doubt_ns)}"
        return f"{accurate}, smaller differences are ignored" if late.doubt_ns else ""
