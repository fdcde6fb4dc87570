"""Runs the named tests and prints how each one ended, a JSON line a test, to the given file."""

from __future__ import annotations

import json
import sys
import time
import unittest
from pathlib import Path
from typing import Any

from tests.torch_suite.suite import TorchSuite


class Outcomes(unittest.TestResult):
    """Appends each outcome to a file as soon as it is known."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self._started = time.monotonic()
        self._outcome, self._why = "passed", ""

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        line = {
            "test": test._testMethodName,
            "outcome": self._outcome,
            "why": self._why,
            "seconds": round(time.monotonic() - self._started, 1),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._outcome, self._why = "failed", str(err[1])[-2000:]

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.addFailure(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self._outcome, self._why = "skipped", reason


def main() -> None:
    path, *names = sys.argv[1:]
    suite = unittest.TestSuite(TorchSuite(name) for name in names)
    suite.run(Outcomes(Path(path)))


if __name__ == "__main__":
    main()
