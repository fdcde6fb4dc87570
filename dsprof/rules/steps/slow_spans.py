"""Spans of a rolling recording in which steps take longer: since when, on which ranks, in what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from statistics import median
from typing import NamedTuple

from dsprof.analysis.aggregates.history import History, Span
from dsprof.analysis.run.busy_spans import busiest, busy_spans, mean_step_ns, mean_waited_ns
from dsprof.findings.finding import Column, Table
from dsprof.findings.wording import duration, named, ranks_do
from dsprof.rules.steps.step_parts import PARTS, few_in_turn, growing_part
from dsprof.trace.columns import BoolArray

_OWN_SHARE = 0.5
"""A rank causes a longer step if it works longer than the others by this share of the excess."""
_AT_A_TIME = 2
"""A span has so many ranks that work longest."""
_LEAST_SPANS = 2
"""In fewer spans it may be chance that a rank works longest."""


class SlowSpans(NamedTuple):
    """Slower spans and the usual ones; times are means per step."""

    begins_s: frozenset[int]
    slow: Sequence[Span]
    others: Sequence[Span]
    hosts: Mapping[int, str]  # of the ranks

    @classmethod
    def of(
        cls,
        spans: Mapping[int, Span],
        is_slow: BoolArray,
        is_usual: BoolArray,
        hosts: Mapping[int, str],
    ) -> SlowSpans:
        """Choose from the spans of a run, by begin."""
        slow = dict(compress(spans.items(), is_slow))
        usual = [*compress(spans.values(), is_usual)]
        return cls(frozenset(slow), [*slow.values()], usual, hosts)

    @property
    def more_ns(self) -> float:
        """How much longer a slower step takes."""
        return _median(self.slow, mean_step_ns) - _median(self.others, mean_step_ns)

    @property
    def lost_ns(self) -> float:
        """How much longer the slower steps take in sum over the ranks."""
        return self.more_ns * sum(span.rank_steps for span in self.slow)

    def are_of_a_rank(self, history: History) -> bool:
        """Whether most of them are those that periodic-slow-step names."""
        busy = {span.begin_s for span in busy_spans(history)}
        return 2 * len(busy & self.begins_s) > len(self.slow)

    def bytes_changed(self, share: float) -> bool:
        """Whether a step sends so much more or less, as a share of the others."""
        now, before = (
            _median(spans, lambda one: one.nbytes / one.rank_steps)
            for spans in (self.slow, self.others)
        )
        return abs(now - before) > share * before

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that work longest in most of the slow spans; (): none, or half of all, of hosts.

        A span has the two ranks that work longest: of several alike, other ones each time.
        """
        ranks = self._late
        is_few = 2 * len(ranks) < max(span.ranks for span in self.slow)
        return ranks if is_few or self._host(ranks) else ()

    @property
    def _late(self) -> tuple[int, ...]:
        """Ranks that work longest in most of the slow spans, one or two in each."""
        usual_ns = _median(self.others, lambda span: busiest(span)[1])
        least_ns = usual_ns + _OWN_SHARE * self.more_ns
        seen, spans = Counter[int](), 0
        for span in self.slow:
            _, *more_ns = busiest(span)
            both = zip(span.busiest, more_ns, strict=False)
            late = [-negative for (_, negative), ns in both if ns > least_ns]
            seen.update(late)
            spans += bool(late)
        ranks = tuple(sorted(rank for rank, count in seen.items() if count >= _LEAST_SPANS))
        return ranks if 2 * spans > len(self.slow) else ()

    @property
    def beside(self) -> tuple[int, ...]:
        """The other ranks of the host, where three of it or more work longest; else ()."""
        ranks = self.ranks
        host = self._host(ranks)
        mine = (rank for rank, name in self.hosts.items() if host and name == host)
        return tuple(sorted({*mine} - {*ranks}))

    def _host(self, ranks: Sequence[int]) -> str:
        """Return the only host of several that three ranks or more are of; "" without one."""
        names = {self.hosts.get(rank, "") for rank in ranks}
        is_one = len(ranks) > 2 and len(names) == 1 and len({*self.hosts.values()}) > 1
        return names.pop() if is_one else ""

    def cause(self, part_share: float) -> tuple[str, str]:
        """Say which ranks work longer, or which part of the step is longer on all; and the part."""
        if not any(span.waited_ns for span in (*self.slow, *self.others)):
            return "Unknown: no time blocked in communication was measured.", ""
        if ranks := self.ranks:
            more = duration(_median(self.slow, lambda span: busiest(span)[1]))
            host = self._host(ranks)
            text = (
                f"{ranks_do(ranks, 'work')} longest in these steps, {more} per step longer than "
                "the mean of the others, and those wait in their collectives."
            )
            if host:
                text += f" They all run on {host}."
            others = f"{named(self.beside)} of that host" if self.beside else "others" * (not host)
            if others and len(ranks) > 1:
                text += f" Sums show two ranks at a time; {others} may be as slow."
            return text, ""
        if len(late := self._late) > _AT_A_TIME:
            return few_in_turn(late), ""
        step_ns, waits_ns = (
            _median(self.slow, of) - _median(self.others, of)
            for of in (mean_step_ns, mean_waited_ns)
        )
        parts = {"exposed_ns": waits_ns, "rest_ns": step_ns - waits_ns}
        part = growing_part(parts, self.more_ns, part_share)
        slower = f"{PARTS[part]}, in the mean over all ranks" if part else "unknown"
        return f"The bytes sent per step did not change. The slower part is {slower}.", part

    @property
    def table(self) -> Table:
        """List both kinds of spans."""
        return Table(
            columns=(Column("median of a step"), Column("others", "ns"), Column("slow", "ns")),
            rows=tuple(
                (name, *(round(_median(spans, of)) for spans in (self.others, self.slow)))
                for name, of in (
                    ("whole step", mean_step_ns),
                    (PARTS["exposed_ns"], mean_waited_ns),
                )
            ),
            caption="Sums over time of slow steps and all others, mean over ranks",
        )


def _median(spans: Sequence[Span], of: Callable[[Span], float]) -> float:
    return float(median(map(of, spans)))
