from __future__ import annotations

import random
from difflib import get_close_matches

from dsprof.rules.knowledge import near_names
from dsprof.rules.knowledge.near_names import NearNames
from dsprof.rules.knowledge.variables import known_names

SIMILARITY = 0.86


def slips(count: int) -> list[str]:
    """Known names with a letter dropped, doubled, swapped or strange."""
    chosen = random.Random(7)
    names = []
    for name in chosen.choices(sorted(known_names()), k=count):
        i = chosen.randrange(1, len(name))
        spoilt = [name[:i] + name[i + 1 :], name[:i] + name[i - 1 :], name[: i // 2], name.lower()]
        names += [chosen.choice(spoilt), f"{name[:i]}\udcff\N{GREEK SMALL LETTER MU}{name[i:]}"]
    return names


def test_the_nearest_is_that_of_difflib():
    near = NearNames(known_names())
    for name in ["", "Q", "X" * 100_000, *slips(30)]:
        expected = get_close_matches(name, known_names(), n=1, cutoff=SIMILARITY)
        assert near.nearest(name, SIMILARITY) == "".join(expected), name


def test_nothing_is_near_where_nothing_is_known():
    assert NearNames([]).nearest("NCCL_DEBUG", SIMILARITY) == ""


def test_few_names_are_compared_letter_by_letter(monkeypatch):
    compared = []

    def counted(name, names, **options):
        compared.extend(names)
        return get_close_matches(name, names, **options)

    monkeypatch.setattr(near_names, "get_close_matches", counted)
    near = NearNames(known_names())
    for number in range(200):
        assert near.nearest(f"NCCL_MY_OWN_{number}", SIMILARITY) == ""
    assert len(compared) < 200 < len(known_names())
