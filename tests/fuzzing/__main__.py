"""Feeds each reader damaged files, many more than the tests do; it ends at the first fault.

    python -m tests.fuzzing [--inputs 100000] [READER...]
    python -m tests.fuzzing --guided --inputs 100000 READER   # needs atheris

What the tests assert holds of every input: traces or one TraceError of one line. Inputs are told
by their number: `--first N` begins with the one that failed. Guided, atheris mutates what reached
new code of dsprof, from the same whole files on.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzzing.formats import FORMATS, read
from tests.fuzzing.mutators import damaged

MEMORY_LIMIT_BYTES = 1 << 30


def feed(name: str, first: int, inputs: int, path: Path) -> str:
    """Feed a reader, and say how it went.

    Raises:
        SystemExit: an input made it fail, or took more memory than any may.
    """
    one = FORMATS[name]()
    start = time.process_time()
    for number in range(first, first + inputs):
        try:
            read(one, path, damaged(one, number))
        except Exception as error:
            raise SystemExit(f"{name}: input {number}: {type(error).__name__}: {error}") from error
        if peak_bytes() > MEMORY_LIMIT_BYTES:
            raise SystemExit(f"{name}: input {number}: more than {MEMORY_LIMIT_BYTES:,} bytes")
    spent = time.process_time() - start
    return f"{name}: {inputs:,} inputs, {spent:.0f} CPU s, peak {peak_bytes() / 1e6:,.0f} MB"


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def guide(name: str, inputs: int, folder: Path) -> None:
    """Let atheris choose the inputs; it ends the process."""
    import atheris

    atheris.instrument_all()
    one = FORMATS[name]()
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "whole").write_bytes(one.whole)
    argv = [sys.argv[0], str(corpus), f"-runs={inputs}", "-max_len=16384", "-rss_limit_mb=2048"]
    atheris.Setup(argv, lambda data: read(one, folder / "input", data) and None)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("readers", nargs="*", choices=[[], *FORMATS], metavar="READER")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--guided", action="store_true", help="by atheris, one reader")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.guided:
            guide(args.readers[0], args.inputs, Path(folder))
        for name in args.readers or FORMATS:
            print(feed(name, args.first, args.inputs, Path(folder) / "input"), flush=True)


if __name__ == "__main__":
    main()
