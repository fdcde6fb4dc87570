"""Tries releases of torch: is each row of the wire table that they can run on record?"""

from __future__ import annotations

import datetime
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.compat.environments import environment, remove
from tests.compat.page import Part, table
from tests.compat.trial import Trial
from tests.dist.programs.wire_table import INTERCEPTIONS
from tests.dist.wire import RANKS

RELEASES = (
    *("2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0"),
    *("2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.14.1", "2.15.0"),
)
"""The newest of each minor series beside the torch that all tests run with."""

SAYS = "import platform, torch; print(f'{torch.__version__}, Python {platform.python_version()}')"
CELL_CHARACTERS = 120


def part(releases: Sequence[str]) -> Part:
    """Return the tables of some releases, or of all."""
    lines: list[str] = []
    holds = True
    for release in releases or RELEASES:
        python = environment("torch", release)
        subprocess.run([python, "-m", "dsprof", "build"], check=True)
        out = Path(tempfile.mkdtemp(prefix=f"torch-{release}-"))
        trials = [Trial(python, out / name, name) for name in RANKS]
        wrong = [line for trial in trials for line in _wrong(trial)]
        versions = subprocess.check_output([python, "-c", SAYS], text=True).strip()
        lines += ["", *_lines(versions, trials), *(["", *wrong] if wrong else [])]
        holds = holds and not wrong
        if not wrong:  # 5 GB each; what is wrong is worth a look
            remove("torch", release)
    return Part(lines[1:], holds)


def _lines(versions: str, trials: Sequence[Trial]) -> Iterator[str]:
    yield f"{datetime.date.today()}, torch {versions}:"
    yield ""
    yield from table(["rows", "ranks", "run there", *INTERCEPTIONS], map(_counts, trials))
    failed = [row for trial in trials for row in trial.bare.items()]
    if not failed:
        return
    yield ""
    yield "Not run, because they fail there without dsprof as well:"
    yield ""
    yield from table(["row", "error"], ([f"`{row}`", _cell(error)] for row, error in failed))


def _counts(trial: Trial) -> list[str]:
    """Return the line of a table: how many rows there are, ran, and hold in each way."""
    ran = len(trial.ran)
    held = [ran - len({row for row, _ in trial.wrong(way)}) for way in INTERCEPTIONS]
    run = [str(trial.table.nproc), f"{ran} of {len(trial.rows)}"]
    return [f"`{trial.name}`", *run, *(f"{number} of {ran}" for number in held)]


def _wrong(trial: Trial) -> Iterator[str]:
    for way in INTERCEPTIONS:
        for row, why in dict.fromkeys(trial.wrong(way)):  # ranks agree in most
            yield f"- `{row}`, `{way}`: {_cell(why)}"


def _cell(text: str) -> str:
    """Return the first sentence of an error, as far as it fits."""
    said = text.partition(". ")[0].partition("\n")[0]
    return said if len(said) <= CELL_CHARACTERS else f"{said[:CELL_CHARACTERS]}..."
