"""What late-rank says of delays, and of how many steps they are known."""

from __future__ import annotations

from typing import NamedTuple

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.lateness import Lateness, Together, Votes
from dsprof.analysis.summary import RunSummary
from dsprof.findings.wording import duration, percent

_KNOWN_SHARE = 0.9
"""With fewer of the measured steps, a sentence does not speak of every step."""
_EVERY = "every step"


class Known(NamedTuple):
    """In how many of the compared steps it is known who comes last."""

    steps: int
    of: int
    measured: int
    silent: int  # measured steps without a collective
    calls: int  # of the collectives of a step, one in so many is compared

    @classmethod
    def of_run(cls, run: RunSummary, late: Lateness, steps: int) -> Known:
        """Return it for so many steps in which it is known."""
        # Where some calls of a step are compared, a step without any is one of the sample, too.
        known = steps if late.calls == 1 else late.compared
        silent = sum(not run[Steps].parts[number].calls for number in run[Steps].measured)
        return cls(known, late.compared, late.asked, silent, late.calls)

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


def steps_of(late: Lateness, count: int) -> str:
    """Say so many steps, and that they are of a sample."""
    return f"{count:,} {'steps' if late.one_in == 1 else 'compared steps'}"


def delay_of(late: Lateness, votes: Votes, step_ns: float, known: Known) -> str:
    """Say which steps the leader delays, and by how much: if few delays make the mean, by these."""
    place, mean = votes.leader, duration(votes.cost_ns)
    share = percent(votes.cost_ns / step_ns)
    is_of_most = votes.is_of_most and known.is_all
    if not votes.is_uneven and (votes.is_of_all or is_of_most):
        named = known.named if votes.is_of_all else "most steps"
        return f"{named} by {mean} ({share})"
    if known.calls > 1:
        return f"a step by {mean} on average ({share})"
    if votes.is_uneven and is_of_most:
        return f"most steps by {duration(int(votes.usual_ns[place]))} (mean {mean})"
    of = votes.steps if known.is_all else known.of
    return (
        f"{votes.votes[place]:,} of {steps_of(late, of)} by {duration(int(votes.voted_ns[place]))}"
    )


def delays_of(several: Together, known: Known, share: float) -> str:
    """Say which steps the ranks delay together, and by how much."""
    mean = duration(several.cost_ns)
    if several.is_of_all:
        return f"{known.named} by {mean} ({percent(share)})"
    if known.calls > 1:
        return f"a step by {mean} on average ({percent(share)})"
    each_ns = several.cost_ns * several.of // several.steps
    return f"{several.steps:,} of {several.of:,} steps by {duration(each_ns)}"


def steps_of_none(late: Lateness, votes: Votes) -> str:
    """Say in how many steps no single rank is late; empty if in none."""
    none = votes.steps - votes.cast
    verb = "have" if late.calls == 1 else "show"
    return f"; {none:,} of {steps_of(late, votes.steps)} {verb} no single late rank" if none else ""


def accuracy_of(late: Lateness) -> str:
    """Say which differences are ignored; empty if none is."""
    if not late.doubt_ns:
        return ""
    accuracy = f"arrival times are accurate to {duration(late.doubt_ns)}"
    return f"; {accuracy}, smaller differences are ignored"
