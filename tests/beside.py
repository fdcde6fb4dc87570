"""Makes a virtual environment that sees this one's packages and has a few of its own beside them.

    python -m tests.beside FOLDER REQUIREMENT...

torch is not installed twice, and what DeepSpeed has compiled for it serves both.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def create(folder: Path, *requirements: str) -> Path:
    """Return the interpreter of an environment in `folder` that has `requirements`.

    Raises:
        subprocess.CalledProcessError: pip could not install them.
    """
    venv.create(folder, clear=True, symlinks=True)
    python = folder / "bin" / "python"
    purelib = sysconfig.get_path("purelib")
    own = sysconfig.get_path("purelib", vars={"base": str(folder)})
    # Not the bare path: the links of editable packages are .pth files, read in site folders only.
    Path(own, "beside.pth").write_text(f"import site; site.addsitedir({purelib!r})\n")
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-build-isolation"]
    subprocess.run([*install, *requirements], check=True, cwd=ROOT)
    return python


def main() -> None:
    folder, *requirements = sys.argv[1:]
    create(Path(folder), "--constraint", str(ROOT / "constraints.txt"), *requirements)


if __name__ == "__main__":
    main()
