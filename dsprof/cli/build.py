"""`dsprof build`: compile the dispatcher's kernels in C++ for the torch that is here."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from dsprof.cli.start import become
from dsprof.cli.versions import version_of
from dsprof.errors import DsprofError

_PROGRAM = ("-m", "dsprof.hooks.wire.native_build")


class BuildCommand:
    """Becomes the program that compiles: this one never imports torch."""

    name = "build"
    help = "compile kernels in C++ that make recording cheaper"
    description = """\
Compile the kernels that see what C++ communicates (DDP, functional collectives)
for the torch and the Python that are installed here. It takes half a minute and
needs a C++ compiler, Python's headers and ninja. Recording uses them from then
on. Training compiles nothing: without them, kernels in Python do the same at a
higher cost, and a run with `interception: native` says so.

They are kept where torch keeps its extensions: in TORCH_EXTENSIONS_DIR, or in
torch_extensions in the user's cache. Build again for another torch, Python or
dsprof."""

    def prepare(self, parser: ArgumentParser) -> None:
        """Take no arguments."""

    def run(self, arguments: Namespace) -> int:
        """Replace this process by the program."""
        if version_of("torch") is None:
            raise DsprofError("torch is not installed here; install it to build for it")
        become([sys.executable, *_PROGRAM], {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
