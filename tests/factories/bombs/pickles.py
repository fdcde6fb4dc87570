"""Pickles: memory snapshots and dumps of flight recorders, and the same dumps as JSON."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.factories import flight, snapshot
from tests.factories.bombs.cases import (
    MIB,
    VALUES,
    Maker,
    as_json,
    case,
    count,
    file,
    packed,
    repeated,
    replaced,
)

START = b"\x80\x04}X\x08\x00\x00\x00segments]X\x0a\x00\x00\x00total_size"
DUMP = b"\x80\x04}X\x09\x00\x00\x00pg_configX\x09\x00\x00\x00pg_statusX\x07\x00\x00\x00entries"
OPCODES: dict[str, tuple[bytes, int]] = {
    "memoize": (b"\x94", 60_000_000),
    "lists": (b"]\x94", 30_000_000),
    "dicts": (b"}", 30_000_000),
    "marks": (b"(", 60_000_000),
    "tuples": (b"\x85", 30_000_000),
    "triples": (b"]]]\x87", 10_000_000),
    "recalls": (b"h\x00", 60_000_000),
    "puts": (b"r\xff\xff\xff\x7f", 10_000_000),
    "strings": (b"X\xff\x00\x00\x00" + b"x" * 255, 1_000_000),
    "empty_strings": (b"\x8c\x00", 30_000_000),
    "bytes": (b"C\xff" + b"x" * 255, 1_000_000),
    "floats": (b"G" + b"\0" * 8, 10_000_000),
    "ints": (b"J\xff\xff\xff\x7f", 10_000_000),
    "longs": (b"\x8a\xff" + b"\xff" * 255, 100_000),
    "small_longs": (b"\x8a\x10" + b"\xff" * 16, 3_000_000),
    "frames": (b"\x95" + b"\xff" * 8, 10_000_000),
    "nones": (b"N", 60_000_000),
    "append_self": (b"h\x00h\x00a", 10_000_000),
    "unknown": (b"\xfe", 1000),
    "calls": (b"cos\nsystem\n)R", 1000),
    "long4": (b"\x8b\xff\xff\xff\x7f" + b"\xff" * 100, 10),
    "unicode8": (b"\x8d" + b"\xff" * 8, 10),
    "decimal": (b"I" + b"9" * 100_000 + b"\n", 100),
}
for word, (opcode, times) in OPCODES.items():
    for begin, ending in ((START, "snapshot_rank0.pickle"), (DUMP, "dump_rank0.pkl")):
        file(
            "pickle",
            f"{word}_{ending}.gz",
            lambda s, b=begin, o=opcode, t=times: packed(repeated(b, o, count(t, s), b"us.")),
        )
        file(
            "pickle",
            f"{word}_{ending}",
            lambda s, b=begin, o=opcode, t=times: repeated(b, o, count(t // 10, s), b"us."),
        )


def _laughs(depth: int, width: int) -> list[Any]:
    inner: list[Any] = ["lol"]
    for _ in range(depth):
        inner = [inner] * width
    return inner


def _cyclic() -> dict[str, Any]:
    one: dict[str, Any] = {"filename": "a.py", "name": "f"}
    one["frames"] = frames = [one]
    frames.append(frames)
    return snapshot.segment(1.0, frames=frames) | {"blocks": frames, "self": one}


def _snapshots(scale: float) -> dict[str, Any]:
    event = snapshot.event("alloc", 1, 1.0)
    piece = snapshot.segment(1.0)
    return {
        "laughs": snapshot.document([piece | {"blocks": _laughs(40, 10)}]),
        "cyclic": snapshot.document([_cyclic()], [event | {"frames": _cyclic()["frames"]}]),
        "segments": snapshot.document([dict(piece) for _ in range(count(1_000_000, scale))]),
        "shared": snapshot.document([piece] * count(1_000_000, scale)),
        "events": snapshot.document([piece], [event] * count(3_000_000, scale)),
        "callers": snapshot.document(
            [piece], [snapshot.event("alloc", i, 1.0, i) for i in range(count(200_000, scale))]
        ),
        "devices": snapshot.document([piece | {"device": i} for i in range(count(300_000, scale))]),
        "frames": snapshot.document(
            [piece],
            [event | {"frames": event["frames"] * 100_000} for _ in range(count(1000, scale))],
        ),
        "long": snapshot.document(
            [piece],
            [
                event
                | {"frames": [{"filename": "x" * MIB + ".py", "name": "y" * MIB, "line": 10**15}]}
            ],
        ),
    }


def _pickled(make_all: Callable[[float], dict[str, Any]], suffix: str) -> Maker:
    def maker(folder: Path, scale: float) -> None:
        for word, document in make_all(scale).items():
            (folder / f"{word}_{suffix}").write_bytes(pickle.dumps(document, 4))

    return maker


case("snapshot", "shapes")(_pickled(_snapshots, "rank0.pickle"))
FLIGHT = flight.document([flight.call(1)])


def _dumps(scale: float) -> dict[str, Any]:
    one = flight.call(1)
    many = {str(i): {"name": str(i), "ranks": "[0,1]"} for i in range(count(200_000, scale))}
    return {
        "entries": FLIGHT | {"entries": [dict(one) for _ in range(count(300_000, scale))]},
        "groups": FLIGHT | {"pg_config": many, "pg_status": many},
        "of_groups": FLIGHT
        | {
            "entries": [
                one | {"process_group": [str(i), str(i)]} for i in range(count(100_000, scale))
            ]
        },
        "ranks": FLIGHT | {"pg_config": {"0": {"name": "0", "ranks": list(range(2_000_000))}}},
        "ranks_text": FLIGHT | {"pg_config": {"0": {"name": "0", "ranks": "[" * 100_000}}},
        "huge_rank": FLIGHT | {"pg_config": {"0": {"name": "0", "ranks": [10**30, -5]}}},
        "sizes": FLIGHT
        | {"entries": [one | {"input_sizes": [[2**60] * 100] * 1000, "output_sizes": [[-1]]}]},
        "laughs": FLIGHT | {"entries": _laughs(40, 10)},
        "cyclic": FLIGHT | {"entries": [one | {"frames": _cyclic()["frames"]}]},
    }


def _dump_values(folder: Path, _: float) -> None:
    for word, value in VALUES.items():
        entries = [new for _, new in replaced(FLIGHT["entries"][0], value)]
        whole = FLIGHT | {"entries": [*FLIGHT["entries"], *entries]}
        (folder / f"{word}_rank0.json").write_bytes(as_json(whole))
        for path, new in replaced({k: v for k, v in FLIGHT.items() if k != "entries"}, value):
            text = as_json(new | {"entries": FLIGHT["entries"]})
            (folder / f"{word}_{path}_rank0.json".replace("/", "_")).write_bytes(text)


case("flight", "values")(_dump_values)
case("flight", "shapes")(_pickled(_dumps, "rank0.pkl"))
JSON_DUMP = b'{"version":"2.9","pg_config":{},"pg_status":{},"entries":['
for word, part in {"objects": b"{},", "lists": b"[[[]]],", "deep": b"[", "texts": b'"",'}.items():
    file(
        "flight",
        f"{word}_rank0.json.gz",
        lambda s, part=part: packed(repeated(JSON_DUMP, part, count(30_000_000, s), b"{}]}")),
    )
    file(
        "flight",
        f"{word}_rank0.json",
        lambda s, part=part: repeated(JSON_DUMP, part, count(10_000_000, s), b"{}]}"),
    )


def _snapshot_values(folder: Path, _: float) -> None:
    for word, value in VALUES.items():
        event = snapshot.event("alloc", 1, 1.0)
        segments = [new for _, new in replaced(snapshot.segment(1.0, -2.0), value)]
        history = [new for _, new in replaced(event, value)]
        value = snapshot.document([snapshot.segment(1.0), *segments], [event, *history])
        (folder / f"{word}_rank0.pickle").write_bytes(pickle.dumps(value, 4))


case("snapshot", "values")(_snapshot_values)
