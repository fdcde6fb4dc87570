"""Tables of a diagnosis as typed data, for any renderer."""

from itertools import chain
from typing import Any

from dsprof.plugins.parts import in_folder
from dsprof.reports.tables.listing import Section

SECTIONS: tuple[Section[Any], ...] = tuple(
    sorted(chain.from_iterable(in_folder(__name__, "SECTIONS")), key=lambda one: one.order)
)
"""Sections of the page that are one table each: any module here may have `SECTIONS`."""
