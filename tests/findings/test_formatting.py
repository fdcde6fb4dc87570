"""Numbers as words."""

from __future__ import annotations

from typing import Any

import pytest

from dsprof.findings import formatting as fmt
from dsprof.findings.finding import ColumnKind


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_500, "1.50 µs"),
        (12_345_678, "12.3 ms"),
        (412_000_000, "412 ms"),
        (-3_000_000, "-3.00 ms"),
        (61_000_000_000, "61.0 s"),
    ],
)
def test_duration_keeps_three_figures(ns: int, words: str) -> None:
    assert fmt.duration(ns) == words


@pytest.mark.parametrize(
    ("n_bytes", "words"),
    [(0, "0 B"), (1023, "1,023 B"), (2**20, "1.00 MiB"), (3 * 2**30, "3.00 GiB")],
)
def test_size_is_binary(n_bytes: int, words: str) -> None:
    assert fmt.size(n_bytes) == words


def test_rate_is_decimal() -> None:
    assert fmt.rate(12.5e9) == "12.5 GB/s"


@pytest.mark.parametrize(
    ("part", "words"),
    [(0.0, "0 %"), (0.00001, "< 0.1 %"), (0.2, "20 %"), (None, "not measurable")],
)
def test_share_tells_nothing_from_little(part: float | None, words: str) -> None:
    assert fmt.share(part) == words


@pytest.mark.parametrize("kind", ["count", "bytes", "ns", "ms", "share", "rate"])
def test_a_null_number_is_never_shown_as_zero(kind: ColumnKind) -> None:
    is_counted = kind in ("count", "bytes")
    assert fmt.cell(None, kind) == ("unknown" if is_counted else "not measurable")
    assert fmt.cell(0, kind).startswith("0")


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (None, "text", fmt.NOTHING),
        (True, "text", "yes"),
        ("all_reduce", "text", "all_reduce"),
        ("unlimited", "bytes", "unlimited"),
        (1.5, "ms", "1.50 ms"),
        (7, "text", "7"),
        (1234567, "count", "1,234,567"),
    ],
)
def test_cell(value: Any, kind: ColumnKind, words: str) -> None:
    assert fmt.cell(value, kind) == words


@pytest.mark.parametrize(
    ("numbers", "words"), [((), ""), ((3,), "3"), ((2, 0, 1, 7), "0-2, 7"), ((1, 1), "1")]
)
def test_ranks_become_ranges(numbers: tuple[int, ...], words: str) -> None:
    assert fmt.ranks(numbers) == words


def test_many_ranges_are_counted() -> None:
    assert fmt.ranks(range(0, 30, 2), at_most=3) == "0, 2, 4 and 12 more"


def test_two_figures_share_a_unit_where_they_have_the_same() -> None:
    assert fmt.one_unit("258 ms", " → ", "194 ms") == "258 → 194 ms"
    assert fmt.one_unit("1.2 s", " → ", "194 ms") == "1.2 s → 194 ms"
    assert fmt.one_unit("not measurable", " → ", "194 ms") == "not measurable → 194 ms"
