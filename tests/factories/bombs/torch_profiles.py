"""Profiles of torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.factories import kineto
from tests.factories.bombs.cases import (
    VALUES,
    as_json,
    case,
    count,
    file,
    packed,
    repeated,
    replaced,
)

PROFILE = b'{"schemaVersion":1,"distributedInfo":{"rank":0,"world_size":1},"traceEvents":[\n'
KERNEL = kineto.document(kineto.steps(3, 1.0, 1.0), 0, 1)


def _profile_values(value: Any, _: float) -> bytes:
    whole = json.loads(KERNEL)
    events = [new for one in whole["traceEvents"][:8] for _, new in replaced(one, value)]
    return as_json(whole | {"traceEvents": [*whole["traceEvents"], *events]})


for word, value in VALUES.items():
    file("kineto", f"{word}.pt.trace.json", partial(_profile_values, value))


def _profile_head(folder: Path, _: float) -> None:
    whole = json.loads(KERNEL)
    events = whole.pop("traceEvents")
    for word, value in list(VALUES.items())[::3]:
        for path, new in replaced(whole, value):
            data = as_json(new | {"traceEvents": events})
            (folder / f"{path}.{word}.pt.trace.json".replace("/", "_")).write_bytes(data)


case("kineto", "heads")(_profile_head)


def _spans(number: int, text: str) -> Iterator[bytes]:
    """Events of which `text` % number is one, 10,000 at a time."""
    yield PROFILE
    for start in range(0, number, 10_000):
        block = range(start, min(number, start + 10_000))
        yield "".join(text.replace("#", str(i)) + ",\n" for i in block).encode()
    yield b'{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"pid":1,"tid":1}]}'


SPAN = '{"ph":"X","cat":"%s","name":"%s","ts":#.5,"dur":1,"pid":1,"tid":1,"args":{%s}}'
OF_KERNEL = '"stream":7,"Collective name":"allreduce","Process Group Name":"#"'
KINETO: dict[str, Callable[[float], Iterable[bytes]]] = {
    "empty": lambda s: repeated(PROFILE, b'{"ph":"X"},', count(20_000_000, s), b"{}]}"),
    "bare": lambda s: repeated(PROFILE, b"{},", count(20_000_000, s), b"{}]}"),
    "phases": lambda s: repeated(PROFILE, b'{"ph":"M"},', count(20_000_000, s), b"{}]}"),
    "broken": lambda s: repeated(PROFILE, b'{"ph":"?"},', count(20_000_000, s), b"{}]}"),
    "blank": lambda s: repeated(PROFILE, b" " * 1000, count(200_000, s), b"{}]}"),
    "head": lambda s: repeated(b'{"schemaVersion":"', b"x" * 1000, count(200_000, s)),
    "tail": lambda s: repeated(KERNEL[:-1] + b',"a":[', b"{},", count(20_000_000, s), b"0]}"),
    "nested": lambda s: repeated(PROFILE, b'{"a":', count(20_000_000, s)),
    "brackets": lambda s: repeated(PROFILE + b'{"a":', b"[{},{},", count(5_000_000, s)),
    "string": lambda s: repeated(PROFILE + b'{"name":"', b"},{", count(20_000_000, s)),
    "names": lambda s: _spans(count(1_000_000, s), SPAN % ("kernel", "k#", "")),
    "categories": lambda s: _spans(count(1_000_000, s), SPAN % ("c#", "x", "")),
    "groups": lambda s: _spans(count(300_000, s), SPAN % ("kernel", "nccl", OF_KERNEL)),
    "steps": lambda s: _spans(count(500_000, s), SPAN % ("user_annotation", "ProfilerStep##", "")),
    "calls": lambda s: _spans(count(500_000, s), SPAN % ("cuda_runtime", "cudaLaunch#", "")),
    "operators": lambda s: _spans(count(1_000_000, s), SPAN % ("cpu_op", "aten::#", "")),
    "threads": lambda s: _spans(
        count(500_000, s), SPAN.replace('"tid":1', '"tid":"t#"') % ("cpu_op", "gloo:all", "")
    ),
    "python": lambda s: _spans(count(500_000, s), SPAN % ("python_function", "f#", "")),
}
for word, content in KINETO.items():
    file("kineto", f"{word}.json.gz", lambda s, content=content: packed(content(s)))
    file("kineto", f"{word}.json", content)
