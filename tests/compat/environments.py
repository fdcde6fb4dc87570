"""The environments that older releases are tried in: made once, in build/compat."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.beside import ROOT, create

ENVIRONMENTS = ROOT / "build" / "compat"


def environment(package: str, release: str) -> Path:
    """Return an interpreter that has this release, and all else from here.

    Raises:
        subprocess.CalledProcessError: pip could not install it.
    """
    folder = ENVIRONMENTS / f"{package}-{release}"
    done = folder / "installed"
    if not done.exists():
        create(folder, f"{package}=={release}")
        done.touch()
    return folder / "bin" / "python"


def remove(package: str, release: str) -> None:
    """Delete the environment of a release."""
    shutil.rmtree(ENVIRONMENTS / f"{package}-{release}")
