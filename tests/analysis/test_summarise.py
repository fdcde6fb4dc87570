from __future__ import annotations

import itertools

import pytest

from dsprof.analysis.aggregates import AGGREGATES
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.engine import fold
from dsprof.analysis.pool import collect
from dsprof.analysis.summarise import summarise
from dsprof.analysis.summary import RankClock, RunSummary
from dsprof.diagnosis.build import diagnosis_of
from dsprof.diagnosis.document import to_json
from dsprof.trace.readers.kineto import KinetoReader
from dsprof.trace.run import find_run
from dsprof.trace.schema import CounterRow, StepCounters
from tests.factories import kineto
from tests.factories.trace import MS, fetch, header, issued, rank_trace, zero_rank


def parts() -> list[RunSummary]:
    """Summaries of four ranks that differ in about everything."""

    def gathers(number: int, start: float):
        yield issued("all_gather", start, start + 9, wait=start + 4, waited=start + 9, step=number)

    counted = [StepCounters(5, [CounterRow("all_reduce", 1, 3, 3000, blocked_ns=2 * MS)])]
    traces = [
        zero_rank(0, 4, extra=gathers),
        zero_rank(1, 4, comm_ms=9, fetches=[fetch(1, 410, 3, step=4, phase="forward")]),
        zero_rank(2, 4, trailer=None, counters=counted, step_ms=110),
        rank_trace(3, 4, head=header(3, 4, host="node-b")),
    ]
    return [collect(trace, RankClock(), AGGREGATES) for trace in traces]


def shown(summary: RunSummary) -> bytes:
    return to_json(diagnosis_of(summary, {}))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[:8])
def test_order_of_ranks_does_not_matter(order):
    a, b, c, d = (parts()[i] for i in order)
    one, two, three, four = parts()
    assert shown(a.merge(b).merge(c).merge(d)) == shown(one.merge(two).merge(three).merge(four))


def test_merge_is_associative():
    a, b, c, d = parts()
    assert shown(a.merge(b.merge(c.merge(d)))) == shown(a.merge(b).merge(c.merge(d)))


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 8, 13])
def test_ranks_are_merged_once_each_and_in_their_order(count):
    class Ranks(tuple):
        def merge(self, other):
            return Ranks(self + other)

    assert fold((Ranks([rank]) for rank in range(count)), Ranks.merge) == tuple(range(count))


def test_a_rule_sees_what_it_declared():
    only = parts()[0].only([Run])
    assert Run in only
    with pytest.raises(KeyError):
        only[next(kind for kind in AGGREGATES if kind is not Run)]


def test_profiles_that_do_not_name_their_hosts_are_read_once(monkeypatch, tmp_path):
    for rank, name in enumerate(("a", "b")):
        kineto.write(tmp_path / f"{name}.json", kineto.steps(4, 30, 5), rank)
    reads = []
    read = KinetoReader.read_trace
    monkeypatch.setattr(KinetoReader, "read_trace", lambda s, p: reads.append(p) or read(s, p))
    summary = summarise(find_run([tmp_path]))
    assert sorted(path.name for path in reads) == ["a.json", "b.json"]
    assert "wall clocks" in summary[Run].clock_method
