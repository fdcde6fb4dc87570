"""Runs PyTorch's own distributed tests bare, with dsprof and bare again; compares test by test.

Exit code 1 if a test ends differently with dsprof although both bare runs agree, or if a test that
communicates left no records.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsprof.trace.reader import read_trace
from dsprof.trace.schema import FILE_PATTERN

RUNS = {"bare": "0", "recorded": "1", "bare again": "0"}
CHUNK = 20
"""Tests a process: the three runs stay close in time, and a lost process costs a few outcomes."""

Outcomes = dict[str, dict[str, str]]  # test -> run -> how it ended


@dataclass(frozen=True)
class Row:
    """One test: how it ended in each run, what torch saw issued, and what dsprof recorded."""

    test: str
    ends: dict[str, str]
    issued: int
    records: int

    @property
    def unsteady(self) -> bool:
        """The test ends differently without dsprof, too."""
        return self.ends["bare"] != self.ends["bare again"]

    @property
    def differs(self) -> bool:
        """The test ends differently with dsprof, and only with it."""
        return not self.unsteady and self.ends["bare"] != self.ends["recorded"]

    @property
    def unseen(self) -> bool:
        """The test communicates, and dsprof recorded nothing."""
        return self.issued > 0 and self.records == 0


def all_tests() -> list[str]:
    """Name the tests of the installed torch."""
    code = "from tests.torch_suite.suite import TorchSuite as s; import unittest; "
    code += "print(*unittest.defaultTestLoader.getTestCaseNames(s))"
    env = environment(Path("."), "0", 2, 0)
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, stdout=subprocess.PIPE)
    return done.stdout.decode().split()


def environment(out: Path, records: str, ranks: int, limit_s: int) -> dict[str, str]:
    """Return the environment of one run."""
    env = {name: value for name, value in os.environ.items() if "DSPROF" not in name}
    return env | {
        "BACKEND": "gloo",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(limit_s),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "SUITE_DSPROF": records,
        "SUITE_OUT": str(out),
        "WORLD_SIZE": str(ranks),
    }


def run(tests: Sequence[str], out: Path, ranks: int, limit_s: int) -> None:
    """Run some tests in all three ways."""
    for name, records in RUNS.items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.torch_suite.runner", folder / "outcomes", *tests]
        with (folder / "output").open("ab") as output:
            subprocess.run(
                command,
                env=environment(folder.resolve(), records, ranks, limit_s),
                stdout=output,
                stderr=output,
                check=False,
            )


def rows(tests: Sequence[str], out: Path) -> Iterator[Row]:
    """Read what the runs left, a row a test."""
    found: dict[str, dict[str, str]] = {}
    for name in RUNS:
        path = out / name / "outcomes"
        lines = map(json.loads, path.read_text().splitlines() if path.exists() else [])
        found[name] = {line["test"]: ending(line) for line in lines}
    for test in tests:
        ends = {name: found[name].get(test, "lost") for name in RUNS}
        seen = (out / "recorded" / test).glob("torch.rank*")
        traces = (out / "recorded" / test / "trace").glob(FILE_PATTERN)
        issued = sum(int(file.read_text()) for file in seen)
        yield Row(test, ends, issued, sum(recorded(file) for file in traces))


def ending(line: dict[str, str]) -> str:
    """Say how a test ended; the reason of a skip is part of it, the words of an error are not."""
    return f"{line['outcome']} ({line['why']})" if line["outcome"] == "skipped" else line["outcome"]


def recorded(trace: Path) -> int:
    """Count the collectives in a trace."""
    return len(read_trace(trace).collectives)


def report(table: Sequence[Row]) -> bool:
    """Print the table and the differences; tell whether there is nothing to complain of."""
    for row in table:
        print(f"{row.records:7,} records {row.issued:6,} issued  {row.test}: {row.ends['bare']}")
    print()
    for title, wrong in (
        ("end differently without dsprof already", [row for row in table if row.unsteady]),
        ("end differently with dsprof", [row for row in table if row.differs]),
        ("communicate and left no record", [row for row in table if row.unseen]),
    ):
        print(f"{len(wrong)} of {len(table)} tests {title}")
        for row in wrong:
            print(f"    {row.test}: {row.ends}")
    print({end: sum(row.ends["bare"] == end for row in table) for end in endings(table)})
    return not any(row.differs or row.unseen for row in table)


def endings(table: Sequence[Row]) -> list[str]:
    """List the ways in which tests ended."""
    return sorted({row.ends["bare"] for row in table})


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.torch_suite", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/torch-suite"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--limit-s", type=int, default=120, help="of one test")
    parser.add_argument("--interception", default="auto", help="of dsprof")
    parser.add_argument("tests", nargs="*", help="names of tests; all if none is given")
    args = parser.parse_args()
    os.environ["SUITE_INTERCEPTION"] = args.interception
    tests = args.tests or all_tests()
    shutil.rmtree(args.out, ignore_errors=True)
    for start in range(0, len(tests), CHUNK):
        run(tests[start : start + CHUNK], args.out, args.ranks, args.limit_s)
        print(f"{min(start + CHUNK, len(tests))} of {len(tests)} tests", file=sys.stderr)
    return 0 if report(list(rows(tests, args.out))) else 1


if __name__ == "__main__":
    sys.exit(main())
