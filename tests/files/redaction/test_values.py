"""Values of diagnoses: secrets are cut out at any depth, and values without any are not copied."""

from __future__ import annotations

import msgspec

from dsprof.files.redaction import REDACTED, map_text, redact_text


class _Part(msgspec.Struct):
    name: str
    parts: list[_Part] = []
    places: tuple[str, ...] = ()
    count: int = 0


def test_what_has_no_secret_is_the_same_object() -> None:
    plain = _Part("all_reduce", [_Part("backward", count=3)], ("train.py:7",))
    assert map_text(plain, redact_text) is plain


def test_a_secret_in_a_part_is_cut_out_of_a_copy() -> None:
    kept, held = _Part("forward"), _Part("log", places=("step 3", "password=hunter2"))
    whole = _Part("run", [kept, held])
    found = map_text(whole, redact_text)
    assert found.parts[1].places == ("step 3", f"password={REDACTED}")
    assert found.parts[0] is kept
    assert held.places[1] == "password=hunter2"


def test_a_secret_beside_numbers_is_cut_out() -> None:
    assert map_text([1, 2.0, "password=hunter2"], redact_text)[2] == f"password={REDACTED}"
    assert map_text((0, ("password=hunter2",)), redact_text) == (0, (f"password={REDACTED}",))


def test_figures_are_not_copied() -> None:
    figures = [1, 2.5, None, True]
    assert map_text(figures, redact_text) is figures
