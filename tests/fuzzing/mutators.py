"""Damage that any file may have, drawn from a generator, so that a number tells the input."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tests.fuzzing.formats import Format

WORDS: Sequence[bytes] = (
    *(b"NaN", b"-Infinity", b"1e999", b"-1e300", b"9" * 40, b"-1", b"null", b"true", b'"x"', b'"'),
    *(b"{", b"}", b"[", b"]", b"},{", b"}{", b"[" * 3000, b'{"a":' * 3000, b"\\u0000", b"\n"),
    *(b"\xed\xa0\x80", b"\xff\xfe", b"\x00" * 8, b"\x1b[31m", "²".encode(), "٣".encode()),
    *(b"", b"(" * 500, b"r\xff\xff\xff\x7f", b"{0}", b"%s", b"[" * 200_000, b"0" * 70_000),
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
)
"""What numbers, brackets and texts of one format or another stumble over."""


def cut(random: Random, one: Format) -> bytes:
    return one.whole[: random.randrange(len(one.whole))]


def flipped(random: Random, one: Format) -> bytes:
    data = bytearray(one.whole)
    for _ in range(random.randint(1, 8)):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def noise(random: Random, one: Format) -> bytes:
    start = random.randrange(len(one.whole) + 1)
    end = start + random.choice((0, 0, 1, 20))
    return one.whole[:start] + random.randbytes(random.randint(1, 64)) + one.whole[end:]


def word(random: Random, one: Format) -> bytes:
    start = random.randrange(len(one.whole) + 1)
    end = start + random.choice((0, 0, 1, 20))
    return one.whole[:start] + random.choice(WORDS) + one.whole[end:]


def replaced(random: Random, one: Format) -> bytes:
    """Replace a few characters wherever they stand in a line."""
    lines = one.whole.split(b"\n")
    place = random.randrange(len(lines))
    start = random.randrange(len(lines[place]) or 1)
    old = lines[place][start : start + random.choice((1, 1, 2, 4))]
    if old:
        lines[place] = lines[place].replace(old, random.choice(WORDS[:-4]))
    return b"\n".join(lines)


def moved(random: Random, one: Format) -> bytes:
    """Leave out, or put in the place of others, some bytes or a page."""
    size = random.choice((1, 8, 64, 1024, 4096))
    here, there = (random.randrange(-(-len(one.whole) // size)) * size for _ in range(2))
    instead = random.choice((b"", one.whole[there : there + size]))
    return one.whole[:here] + instead + one.whole[here + size :]


def started(random: Random, one: Format) -> bytes:
    """Anything behind a beginning by which the file is recognised."""
    return random.choice(one.starts) + random.randbytes(random.randint(0, 256))


def told_twice(random: Random, one: Format) -> bytes:
    """Write a key of JSON a second time, before or behind."""
    keys = list(re.finditer(rb'"\w+": ?', one.whole))
    if not keys:
        return word(random, one)
    key = random.choice(keys)
    return (
        one.whole[: key.start()] + key[0] + random.choice(WORDS) + b"," + one.whole[key.start() :]
    )


def valued(random: Random, one: Format) -> bytes:
    """Write any value into any place of the document, or leave it out."""
    document = copy.deepcopy(one.document)
    if document is None:
        return replaced(random, one)
    places: list[Any] = [document]
    for part in places:
        inner = part.values() if isinstance(part, dict) else part
        places += [child for child in inner if isinstance(child, (dict, list)) and child]
    for _ in range(random.choice((1, 1, 2))):
        place = random.choice(places)
        key = random.choice(list(place) if isinstance(place, dict) else range(len(place)))
        place[key] = any_value(random)
        if isinstance(place, dict) and random.random() < 0.1:
            del place[key]
    return one.encode(document)


def any_value(random: Random, depth: int = 0) -> Any:
    match random.randrange(10 if depth < 3 else 8):
        case 0:
            return None
        case 1:
            return random.random() < 0.5
        case 2 | 3:
            return random.choice((0, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 7))
        case 4:
            return random.choice((0.0, -0.0, 0.5, 1e300, float("nan"), float("inf"), -1.5))
        case 5:
            return random.randint(-(2**40), 2**40)
        case 6:
            return random.choice(("", "x", "7", "-1", "nan", "[", "[[", "\0", "²", "{0}", "9" * 40))
        case 7:
            return "".join(chr(random.randrange(1, 0xD800)) for _ in range(random.randint(1, 5)))
        case 8:
            return [any_value(random, depth + 1) for _ in range(random.randint(0, 3))]
        case _:
            return {"ab"[i]: any_value(random, depth + 1) for i in range(random.randint(0, 2))}


MUTATORS: Sequence[Callable[[Random, Format], bytes]] = (
    *(cut, flipped, noise, word, replaced, moved, started, told_twice),
    *(valued, valued, valued),
)


def damaged(one: Format, number: int) -> bytes:
    """Return the input of this number."""
    return MUTATORS[number % len(MUTATORS)](Random(number), one)
