"""Runs the rows of the wire table with another torch, whatever happens to single ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.dist.launch import Result, launch
from tests.dist.programs import wire_rows
from tests.dist.wire import BARE, RANKS, Table

PROGRAM = Path(__file__).with_name("wire_program.py")
SECONDS = 900  # for what is left of a table, at most


class Trial:
    """The rows of one table, each run without dsprof, and recorded if that went well.

    `bare` and `recorded` hold the rows that failed so, and their errors; `ran` those that did not
    without dsprof.
    """

    def __init__(self, python: Path, out: Path, name: str) -> None:
        self.name = name
        self.rows = list(getattr(wire_rows, name))
        self.table = Table(out / "oracle", out / "traces", RANKS[name])
        self._python = python
        self.bare = self._run(self.rows, self.table.oracle, "--oracle")
        self.ran = [row for row in self.rows if row not in self.bare]
        self.recorded = self._run(self.ran, self.table.traces)

    def wrong(self, interception: str) -> Iterator[tuple[str, str]]:
        """Yield rows that ran without dsprof, and what is not as it should be."""
        for row in self.ran:
            if row in self.recorded:
                yield row, self.recorded[row]
                continue
            if not self.table.agrees(row, interception):
                yield row, "not as torch counts"
            yield from ((row, fault) for fault in self.table.faults(row, interception))

    def _run(self, rows: Sequence[str], out: Path, *options: str) -> dict[str, str]:
        """Run `rows`, again from the next one on after one that fails; return those that do."""
        failed: dict[str, str] = {}
        while rows:
            progress = out / "progress" / rows[0]
            result = launch(
                PROGRAM,
                self.table.nproc,
                args=[progress, ",".join(rows), out, self.name, *options],
                env=BARE if options else {},
                timeout=SECONDS,
                python=self._python,
            )
            (out / f"{rows[0]}.log").write_text(result.output)
            if not result.returncode:
                break
            row, error = _culprit(rows, progress, result)
            failed[row] = error
            rows = rows[rows.index(row) + 1 :]
        return failed


def _culprit(rows: Sequence[str], progress: Path, result: Result) -> tuple[str, str]:
    """Return the row that ended a run, and its error.

    Raises:
        RuntimeError: it ended in none.
    """
    notes = [json.loads(note.read_text()) for note in sorted(progress.glob("rank*.json"))]
    if not notes:
        raise RuntimeError(f"a run failed beside its rows\n{result.output[-2000:]}")
    last = max((row for row, _ in notes), key=rows.index)
    errors = [error for row, error in notes if row == last and error]
    how = "hangs" if result.returncode == 124 else f"exit code {result.returncode}"
    return last, errors[0] if errors else how
