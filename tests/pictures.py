"""Takes the picture of the docs from a real run: `python -m tests.pictures`, part of `make docs`.

Four ranks train, one of them late (`examples/wrong`); the picture is the first screen of their
report.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.browser import EXECUTABLE, chromium

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "report.png"
_WIDTH = 1440
_RUN = ("--standalone", "--nproc-per-node", "4", "-m", "examples.wrong", "late_rank")


def _reported(folder: Path) -> Path:
    """Train, recorded, and return the page of the report."""
    recorded = {**os.environ, "DSPROF": "1", "DSPROF_OUT": str(folder), "OMP_NUM_THREADS": "1"}
    train = [sys.executable, "-m", "torch.distributed.run", *_RUN, "--steps", "80"]
    subprocess.run(train, cwd=ROOT, env=recorded, check=True)
    page = folder / "report.html"
    report = [
        sys.executable,
        "-m",
        "dsprof",
        "report",
        str(folder),
        "--static",
        "-q",
        "-o",
        str(page),
    ]
    subprocess.run(report, cwd=ROOT, check=True)
    return page


def _photograph(path: Path) -> bytes:
    """Return the first screen of a page, down to the line below it."""
    with chromium() as browser:
        page = browser.open(path, width=_WIDTH)
        page.evaluate("document.documentElement.style.scrollbarWidth = 'none'")
        height = page.evaluate("document.querySelector('header').getBoundingClientRect().bottom")
        clip = {"x": 0, "y": 0, "width": _WIDTH, "height": height, "scale": 1}
        shot = page.call("Page.captureScreenshot", format="png", clip=clip)
    return base64.b64decode(shot["data"])


def main() -> None:
    """Renew the picture, where there is a browser to take it with."""
    if EXECUTABLE is None:
        print("No Chromium: docs/images/report.png stays as it is.")
        return
    with TemporaryDirectory() as folder:
        PICTURE.write_bytes(_photograph(_reported(Path(folder))))
    print(f"Wrote {PICTURE.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
