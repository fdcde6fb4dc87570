"""Feeds each reader damaged files, many more than the tests do; it ends at the first fault.

    python -m tests.fuzz [--inputs 100000] [READER...]
    python -m tests.fuzz --guided --inputs 100000 READER   # needs atheris, which is not installed

What the tests assert holds of every input: a run or one TraceError of one line. The random inputs
are told by their number: `--first N` begins with the one that failed. Guided, atheris mutates what
reached new code of dsprof, from the same whole files on.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

MEMORY_LIMIT_BYTES = 1 << 30
WORDS = [
    b"NaN",
    b"1e999",
    b"9" * 40,
    b"-1",
    b"null",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b"},{",
    b"\\u0000",
]
WORDS += [b"[" * 3000, b'{"a":' * 3000, b"\xff\xfe", b"\n", b"\x00" * 8, b"\x1b[31m"]
READERS = {
    "native": ("tests.trace.test_reader_fuzz", "WHOLE"),
    "kineto": ("tests.trace.readers.test_kineto_fuzz", "WHOLE"),
    "gzip": ("tests.trace.readers.test_kineto_fuzz", "PACKED"),
    "zip": ("tests.trace.readers.test_kineto_fuzz", "ZIPPED"),
    "log": ("tests.trace.readers.test_logs_fuzz", "WHOLE"),
    "dump": ("tests.trace.readers.test_dumps_fuzz", "WHOLE"),
    "json": ("tests.trace.readers.test_dumps_fuzz", "WHOLE"),
    "snapshot": ("tests.trace.readers.test_dumps_fuzz", "WHOLE"),
    "inspector": ("tests.trace.readers.test_exports_fuzz", "TEXTS"),
    "execution": ("tests.trace.readers.test_exports_fuzz", "TEXTS"),
    "nsys": ("tests.trace.readers.test_exports_fuzz", "export"),
    "chakra": ("tests.trace.readers.test_chakra_fuzz", "WHOLE"),
}
"""Where each kind of file is read, and what is a whole one there: bytes, what gives them, or
several by their kind."""

Read = Callable[[Path, bytes], Any]


def reader(kind: str) -> tuple[Read, bytes]:
    """Return what reads a file of this kind as the tests do, and a whole file."""
    module, name = READERS[kind]
    tests = importlib.import_module(module)
    whole = getattr(tests, name)
    whole = whole() if callable(whole) else whole
    return tests.read, whole[kind] if isinstance(whole, dict) else whole


def damaged(whole: bytes, number: int) -> bytes:
    """Return the input of this number: one to four kinds of damage."""
    random, data = Random(number), bytearray(whole)
    for _ in range(random.randint(1, 4)):
        start = random.randrange(len(data) + 1)
        end = min(len(data), start + random.choice((1, 8, 64, 1024)))
        match random.randrange(6):
            case 0:
                del data[start:]
            case 1:
                del data[start:end]
            case 2:
                data[start:start] = data[start:end]
            case 3:
                data[start:start] = random.choice(WORDS)
            case 4:
                data[start:end] = random.randbytes(end - start)
            case _:
                for _ in range(random.randint(1, 8)):
                    if data:
                        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def feed(kind: str, first: int, inputs: int, path: Path) -> str:
    """Feed a reader, and say how it went.

    Raises:
        SystemExit: an input made it fail, or took more memory than any may.
    """
    read, whole = reader(kind)
    start = time.process_time()
    for number in range(first, first + inputs):
        try:
            read(path, damaged(whole, number))
        except Exception as error:
            raise SystemExit(f"{kind}: input {number}: {type(error).__name__}: {error}") from error
        if peak_bytes() > MEMORY_LIMIT_BYTES:
            raise SystemExit(f"{kind}: input {number}: more than {MEMORY_LIMIT_BYTES:,} bytes")
    spent = time.process_time() - start
    return f"{kind}: {inputs:,} inputs, {spent:.0f} CPU s, peak {peak_bytes() / 1e6:,.0f} MB"


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def guide(kind: str, inputs: int, folder: Path) -> None:
    """Let atheris choose the inputs; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=["dsprof.trace"]):
        read, whole = reader(kind)
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "whole").write_bytes(whole)
    argv = [sys.argv[0], str(corpus), f"-runs={inputs}", "-max_len=16384", "-rss_limit_mb=2048"]
    atheris.Setup(argv, lambda data: read(folder / "input", data) and None)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("readers", nargs="*", choices=[[], *READERS], metavar="READER")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--guided", action="store_true", help="by atheris, one reader")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if args.guided:
            guide(args.readers[0], args.inputs, Path(folder))
        for kind in args.readers or READERS:
            print(feed(kind, args.first, args.inputs, Path(folder) / "input"), flush=True)


if __name__ == "__main__":
    main()
