"""What is written from the schema is as new as the schema, and each field has a sentence."""

from __future__ import annotations

import msgspec
import pytest

from dsprof.trace import generate
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import KINDS, Mark
from dsprof.trace.writing.file_records import in_file

RELATIVE = [
    record
    for record in generate.structs()
    if any(field.marks & {Mark.INSTANT, Mark.LIVE} for field in generate.fields(record))
]


@pytest.mark.parametrize("path", generate.files(), ids=lambda path: path.name)
def test_what_is_written_from_the_schema_is_up_to_date(path) -> None:
    assert path.read_text("utf-8") == generate.files()[path], "run python -m dsprof.trace.generate"


@pytest.mark.parametrize("record", generate.structs(), ids=lambda record: record.__name__)
def test_each_field_says_what_it_is(record: type) -> None:
    assert [field.name for field in generate.fields(record) if not field.doc] == []


@pytest.mark.parametrize("record", generate.structs(), ids=lambda record: record.__name__)
def test_times_say_whether_they_are_moments_or_durations(record: type) -> None:
    """Those of a header are on clocks of their own; those of trailer and index name their start."""
    unmarked = [
        field.name
        for field in generate.fields(record)
        if field.name.endswith("_ns") and not field.marks & {Mark.INSTANT, Mark.DURATION}
    ]
    assert unmarked in (
        [],
        ["started_epoch_ns", "started_monotonic_ns"],
        ["exception_ns"],
        ["ended_ns"],
    )


@pytest.mark.parametrize("record", RELATIVE, ids=lambda record: record.__name__)
def test_what_a_hook_holds_is_copied_and_made_relative(record: type) -> None:
    fields = list(generate.fields(record))
    moments = [field.name for field in fields if Mark.INSTANT in field.marks]
    live = [field.name for field in fields if Mark.LIVE in field.marks]
    given = record(**{f.name: 7 for f in fields} | {n: 1000 + i for i, n in enumerate(moments)})
    settled = in_file(record)(given, 900)
    assert {n: getattr(settled, n) for n in moments} == {n: 100 + i for i, n in enumerate(moments)}
    defaults = {one.name: one.default for one in msgspec.structs.fields(record)}
    assert {name: getattr(settled, name) for name in live} == {
        name: defaults[name] for name in live
    }
    assert all(getattr(given, name) >= 1000 for name in moments)


def test_what_was_not_seen_stays_unseen() -> None:
    for record in RELATIVE:
        unseen = [f.name for f in generate.fields(record) if Mark.INSTANT in f.marks and f.default]
        given = record(*[5 for f in generate.fields(record) if not f.default])
        assert [getattr(in_file(record)(given, 3), name) for name in unseen] == [0] * len(unseen)


def test_each_kind_of_line_has_its_place_in_a_trace() -> None:
    held = {kind.held for kind in KINDS if kind.held}
    assert held <= {*RankTrace.__dataclass_fields__}
