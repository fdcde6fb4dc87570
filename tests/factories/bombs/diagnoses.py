"""Saved diagnoses."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsprof.diagnosis.document import to_json
from tests.factories.bombs.cases import VALUES, as_json, case, count, file, repeated, replaced
from tests.factories.diagnosis import diagnosis

SAVED = to_json(diagnosis())


@case("diagnosis", "values")
def _saved_values(folder: Path, scale: float) -> None:
    """A saved diagnosis with one wrong field: some of all, at random."""
    whole = json.loads(SAVED)
    paths = [path for path, _ in replaced(whole, None)]
    generator = random.Random(7)
    for number in range(count(1200, scale)):
        path, (word, value) = generator.choice(paths), generator.choice(list(VALUES.items()))
        new = next(new for at, new in replaced(whole, value) if at == path)
        (folder / f"{number}_{word}.json").write_bytes(as_json(new))


def _lists(value: Any) -> Iterator[list[Any]]:
    """Yield every list within, except in items that are not the first of theirs."""
    if isinstance(value, list) and value:
        yield value
    if not isinstance(value, (dict, list)):
        return
    for part in value.values() if isinstance(value, dict) else value[:1]:
        yield from _lists(part)


@case("diagnosis", "lengths")
def _saved_lengths(folder: Path, _: float) -> None:
    """One list without an item, or with its items many times."""
    for number in range(len(list(_lists(json.loads(SAVED))))):
        for times in (0, 1, 300):
            whole = json.loads(SAVED)
            changed = list(_lists(whole))[number]
            changed[:] = changed * times or changed[:-1]
            (folder / f"{number}_{times}.json").write_bytes(as_json(whole))


MARKED = b'{"schema_version":1,"findings":['
for word, part in {"objects": b"{},", "deep": b"[", "texts": b'"a",', "digits": b"9"}.items():
    file(
        "diagnosis",
        f"{word}.json",
        lambda s, part=part: repeated(MARKED, part, count(40_000_000, s), b"{}]}"),
    )
file(
    "diagnosis",
    "findings.json",
    lambda s: as_json(
        json.loads(SAVED) | {"findings": json.loads(SAVED)["findings"] * count(20_000, s)}
    ),
)
file(
    "diagnosis",
    "ranks.json",
    lambda s: as_json(
        json.loads(SAVED)
        | {
            "waits": {
                "ranks": list(range(count(1000, s))),
                "steps": list(range(count(2000, s))),
                "exposed_ns": [[1] * count(2000, s)] * count(1000, s),
            }
        }
    ),
)
