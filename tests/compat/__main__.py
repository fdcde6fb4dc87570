"""Tries dsprof with older releases beside what is installed, and writes docs/compatibility.md.

python -m tests.compat [RELEASE...]
"""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from tests.beside import ROOT, create
from tests.compat.deepspeeds import CHECKS, try_release

DEEPSPEED = ("0.14.5", "0.15.4", "0.16.9", "0.17.6", "0.18.9", "0.19.8")
"""The newest of each minor series."""

ENVIRONMENTS = ROOT / "build" / "compat"
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- written by make compat -->", "<!-- end -->"


def environment(release: str) -> Path:
    """Return an interpreter that has this DeepSpeed, and torch from here."""
    folder = ENVIRONMENTS / f"deepspeed-{release}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        create(folder, f"deepspeed=={release}")
        done.touch()
    return python


def row(release: str) -> str:
    """Return the line of the table for one release."""
    try:
        python = environment(release)
        subprocess.run([python, "-c", "import deepspeed"], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return f"| {release} | does not import: {said[-1] if said else error} |"
    out = Path(tempfile.mkdtemp(prefix=f"deepspeed-{release}-"))
    answers = try_release(python, out)
    return f"| {release} | {' | '.join(answers.values())} |"


def main() -> None:
    releases = sys.argv[1:] or DEEPSPEED
    rows = []
    for release in releases:
        rows.append(row(release))
        print(rows[-1], flush=True)
    names = ["DeepSpeed", *(check.__name__ for check in CHECKS), "hooks off"]
    table = [
        BEGIN,
        f"{datetime.date.today()}, torch {torch.__version__}, Python {platform.python_version()}:",
        "",
        f"| {' | '.join(names)} |",
        f"|{' --- |' * len(names)}",
        *rows,
        END,
    ]
    page = PAGE.read_text()
    before, after = page[: page.index(BEGIN)], page[page.index(END) + len(END) :]
    PAGE.write_text(before + "\n".join(table) + after)


if __name__ == "__main__":
    main()
