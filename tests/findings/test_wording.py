"""Numbers, ranks and reasons in sentences."""

from __future__ import annotations

import pytest

from dsprof.findings.formatting import NO_BREAK, unbroken
from dsprof.findings.wording import (
    count,
    duration,
    figures,
    listed,
    long_duration,
    named,
    percent,
    ranks_do,
    rate,
    reason,
    sentence,
    shortened,
    size,
    some,
)


@pytest.mark.parametrize(
    ("value", "words"),
    [(1234.5, "1,234"), (99.96, "100"), (9.996, "10.0"), (0.5, "0.50"), (0.0042, "0.0042")],
)
def test_a_number_has_about_three_figures(value: float, words: str) -> None:
    assert figures(value) == words


def test_the_first_names_stand_for_all() -> None:
    assert [some("abcd"[:n]) for n in (0, 2, 3, 4)] == ["", "a, b", "a, b, c", "a, b, c and 1 more"]
    assert some(["x"] * 1002, 2) == "x, x and 1,000 more"


def test_whole_numbers_are_in_full() -> None:
    assert (count(20_947), count(2.0), count(2.5)) == ("20,947", "2", "2.50")


def test_bandwidth_is_decimal() -> None:
    assert (rate(96.2e9), rate(2e8)) == ("96.2 GB/s", "200 MB/s")


def test_the_unit_is_that_of_the_rounded_number() -> None:
    assert [duration(ns) for ns in (999_400, 999_600, -999_600e3)] == [
        "999 µs",
        "1.00 ms",
        "-1.00 s",
    ]
    assert [size(1023.4 * 2**20), size(1023.7 * 2**20)] == ["1,023 MiB", "1.00 GiB"]
    assert (rate(999.7e6), duration(999.6e9)) == ("1.00 GB/s", "1,000 s")
    assert [long_duration(60e9 * minutes) for minutes in (59.94, 59.96)] == ["59.9 min", "1.00 h"]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (0.0, "0 %"),
        (0.0004, "< 0.1 %"),
        (0.0995, "10 %"),
        (0.9949, "99 %"),
        (0.996, "99.6 %"),
        (-0.996, "\N{MINUS SIGN}99.6 %"),
        (0.9996, "> 99.9 %"),
        (-0.9996, "\N{MINUS SIGN}99.9 %"),
        (-1.0, "\N{MINUS SIGN}100 %"),
        (1 - 1e-12, "100 %"),
        (1.004, "100 %"),
    ],
)
def test_neither_is_something_nothing_nor_a_part_all(part: float, words: str) -> None:
    assert percent(part) == words


def test_a_change_may_be_as_much_again() -> None:
    assert [percent(one, sign="+") for one in (0.9996, -0.9996, -1.0)] == [
        "+100 %",
        "\N{MINUS SIGN}99.9 %",
        "\N{MINUS SIGN}100 %",
    ]


def test_ranks_are_ranges_whatever_their_order() -> None:
    assert listed([7, 0, 1, 2]) == "0-2, 7"
    assert (named([3]), named(range(999))) == ("rank 3", "ranks 0-998")
    assert (ranks_do((3,), "wait"), ranks_do((3, 4), "wait")) == ("Rank 3 waits", "Ranks 3-4 wait")


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        ("Unknown: events are missing.", "Events are missing."),
        ("No log was given.", "No log was given."),
        ("Unknown: overlap_comm was not recorded.", "overlap_comm was not recorded."),
    ],
)
def test_a_reason_is_a_sentence(summary: str, why: str) -> None:
    assert reason(summary) == why


@pytest.mark.parametrize(
    ("text", "ended"), [("It is slow", "It is slow."), ("Is it?", "Is it?"), ("", "")]
)
def test_a_sentence_ends_where_there_are_words(text: str, ended: str) -> None:
    assert sentence(text) == ended


def test_a_number_keeps_its_unit_on_its_line() -> None:
    text = "9.90 MiB at 1.5 GB/s: 15 % of 3 steps, 4 bytes in rank 2 s"
    kept = unbroken(text)
    assert kept.count(NO_BREAK) == 4
    assert kept.replace(NO_BREAK, " ") == text


def test_no_part_of_a_credential_is_left_where_text_is_cut() -> None:
    secret = "correcthorsebatterystaple"
    text = shortened(f"cannot open https://user:{secret}@host/, after 3 attempts in 90 s", 40)
    assert text.startswith("cannot open https://<redacted>@host/")
    assert shortened(f"cannot open https://user:{secret}@host/x", 40).endswith("@host/x")
