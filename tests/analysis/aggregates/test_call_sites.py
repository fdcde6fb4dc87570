from __future__ import annotations

from dsprof.analysis.aggregates.call_sites import CallSites, SiteUse
from dsprof.trace.schema import Site
from tests.factories.trace import MS, rank_trace, step, summary, sync

SITES = {1: Site(1, "/home/me/train.py", 40, "main"), 2: Site(2, "/home/me/model.py", 7, "forward")}


def of_rank(*comm, rank=0, sites=SITES):
    return rank_trace(rank, steps=[step(0, 0, 100)], comm=comm, sites=sites)


def test_exposed_time_counts_for_the_line_that_issued_it():
    traces = [
        of_rank(
            sync("all_reduce", 0, 2 + rank, step=0, site=1, phase="backward"),
            sync("all_reduce", 10, 2, step=0, site=1, phase="backward"),
            sync("all_gather", 20, 5, step=0, site=2, phase="forward"),
            sync("barrier", 30, 1, step=0),
            rank=rank,
        )
        for rank in (0, 1)
    ]
    found = summary(*traces)[CallSites]
    assert {use: held.exposed_ns for use, held in found.rows.items()} == {
        SiteUse("/home/me/train.py:40 main", "backward", "all_reduce"): 9 * MS,
        SiteUse("/home/me/model.py:7 forward", "forward", "all_gather"): 10 * MS,
        SiteUse("", "", "barrier"): 2 * MS,
    }
    assert found.rank_steps == 2


def test_a_trace_without_call_sites_has_no_rows():
    assert summary(of_rank(sync("all_reduce", 0, 2, step=0), sites={}))[CallSites].rows == {}


def test_a_line_that_two_threads_found_at_once_is_one_row():
    sites = {1: SITES[1], 2: Site(2, "/home/me/train.py", 40, "main")}
    comm = [sync("all_reduce", 10 * site, site, step=0, site=site) for site in sites]
    (held,) = summary(of_rank(*comm, sites=sites))[CallSites].rows.values()
    assert (held.calls, held.exposed_ns, held.rank_steps) == (2, 3 * MS, 1)
