"""`dsprof build`: what it writes, what it needs, and what it says when that is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.cli.command import dsprof, environment

pytestmark = pytest.mark.long  # each imports torch and what compiles for it

PROGRAM = "import sys; from dsprof.hooks.wire.native_build import main; sys.exit(main())"
"""What `dsprof build` becomes."""


def build(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    settings = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"), **variables}
    return forked.python(PROGRAM, TORCH_DEVICE_BACKEND_AUTOLOAD="0", **settings)


def compiler(tmp_path: Path, text: str) -> str:
    path = tmp_path / "c++"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def built(tmp_path: Path) -> list[str]:
    folder = tmp_path / "extensions"
    return os.listdir(folder) if folder.exists() else []


COMPILES_EACH_ONCE = """\
for made; do :; done
case "$*" in *" -c "*) ;; *) exec c++ "$@";; esac
kept="$0.${made##*/}"
if [ -e "$kept" ]; then cp "$kept" "$made"; else c++ "$@" && cp "$made" "$kept"; fi
"""
"""A compiler that keeps what it made, by name: each compilation takes half a minute."""


def test_it_writes_one_file_and_a_second_time_the_same(tmp_path: Path) -> None:
    variables = {"CXX": compiler(tmp_path, COMPILES_EACH_ONCE)}
    variables["TORCH_EXTENSIONS_DIR"] = str(tmp_path / "extensions")
    for _ in range(2):
        done = dsprof("build", cwd=tmp_path, env=environment(**variables))
        assert (done.returncode, done.stderr) == (0, "")
        [name] = built(tmp_path)
        assert f"{tmp_path / 'extensions' / name}\n" in done.stdout
        assert done.stdout.endswith("Recording uses them from now on.\n")


def test_ninja_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "ninja.py").write_text("raise ImportError")
    here = environment(tmp_path, PATH=str(tmp_path), CXX=compiler(tmp_path, "exit 0"))
    done = dsprof("build", cwd=tmp_path, env=here)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "dsprof: ninja cannot be found here: install it with pip, and try again\n"
    )


def test_a_compiler_that_is_missing(tmp_path: Path) -> None:
    done = build(tmp_path, CXX="no-such-compiler")
    assert done.returncode == 2
    assert done.stderr == (
        "dsprof: no-such-compiler cannot be found here: install a C++ compiler, or name yours in "
        "CXX, and try again\n"
    )
    assert built(tmp_path) == []


NO_HEADERS = "echo 'kernels.cpp:9:10: fatal error: Python.h: No such file'; exit 1"
LIKE_GCC = 'case "$*" in -dump*|-v) exec c++ "$@";; esac\n'


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (LIKE_GCC + NO_HEADERS, "kernels.cpp:9:10: fatal error: Python.h: No such file"),
        ("exit 1", "returned non-zero exit status 1."),
    ],
)
def test_what_the_compiler_says_is_passed_on(tmp_path: Path, script: str, said: str) -> None:
    done = build(tmp_path, CXX=compiler(tmp_path, script))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("dsprof: cannot compile for torch ")
    assert line.endswith(said)
    assert built(tmp_path) == []


@pytest.mark.parametrize("below", ["a file", "/proc"])  # where root cannot write either
def test_a_folder_that_cannot_be_made(tmp_path: Path, below: str) -> None:
    (tmp_path / "a file").touch()
    folder = tmp_path / below / "extensions"
    done = build(tmp_path, TORCH_EXTENSIONS_DIR=str(folder))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"dsprof: cannot write below {folder}: ")
    assert line.endswith("; set TORCH_EXTENSIONS_DIR to a folder that can be written")


def test_without_torch(tmp_path: Path) -> None:
    code = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
    code += "from dsprof.cli.build import BuildCommand; BuildCommand().run(None)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "DsprofError: torch is not installed here" in done.stderr
