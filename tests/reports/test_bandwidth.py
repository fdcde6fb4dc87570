from __future__ import annotations

from dsprof.diagnosis.parts.communication import BaselineInfo
from dsprof.reports import tables
from dsprof.reports.base import Options
from dsprof.reports.html import RENDERER
from tests.factories import diagnosis as factory
from tests.reports.pages import parse


def test_a_transfer_stands_beside_what_it_is_held_to():
    judged, small = tables.communication.transfers(factory.transfers(8)).rows
    assert judged[:4] == ("all_reduce", "world (8)", 1, "16-64 MiB")
    assert judged[-4:] == (1.5e9, 2.9e9, "the baseline", "yes")
    assert small[-3:] == (None, "", "no")


def said(**fields) -> str:
    page = parse(RENDERER.render(factory.diagnosis(8, 4, **fields), Options()))
    return page.one("section", id="communication").text


def test_the_page_says_where_expectations_come_from():
    assert "published results for the same links" in said()
    info = BaselineInfo(source="b.json", is_used=True, started="2026-01-02T03:04:05+00:00")
    assert "dsprof bench measured (b.json, 2026-01-02T03:04:05+00:00)" in said(baseline=info)
    unused = BaselineInfo(source="b.json", is_used=False)
    assert "b.json" not in said(baseline=unused)


def test_without_transfers_there_is_no_table():
    assert "Expected busbw" in said()
    assert "Expected" not in said(transfers=[])
