"""`dsprof bench`: measure what communication costs on this machine."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from dsprof.bench.options import Options, add_options
from dsprof.cli.output import check_writable
from dsprof.cli.start import become
from dsprof.cli.versions import version_of
from dsprof.errors import DsprofError

_RANK = ("-m", "dsprof.bench")
_LAUNCHER = ("-m", "dsprof.bench.launcher")


class BenchCommand:
    """Becomes one rank of the measurement, or the launcher that starts them."""

    name = "bench"
    help = "measure communication and matrix products on this machine"
    description = """\
Measure every collective and point-to-point over sizes and groups, check that
each gives the right result, measure matrix products by precision, and write all
of it as a baseline for reports.

  dsprof bench                                     all ranks of this machine
  dsprof bench --nproc-per-node 2 --backend gloo   two ranks on CPUs
  torchrun ... -m dsprof bench                     on several nodes
  dsprof report dsprof-out --baseline dsprof-baseline.json

A wrong result is named, nothing is written, and the exit code is 1."""

    def prepare(self, parser: ArgumentParser) -> None:
        add_options(parser)
        parser.add_argument(
            "--nproc-per-node",
            default="auto",
            metavar="N",
            help="ranks to start: a number, or what torchrun takes (default auto: a rank for each "
            "GPU, else for each CPU); not within torchrun",
        )

    def run(self, arguments: Namespace) -> int:
        """Replace this process by a rank or by the launcher."""
        options = Options.of(arguments)
        check_writable(options.output, ())
        if version_of("torch") is None:
            raise DsprofError("torch is not installed here; install it to measure")
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            become([sys.executable, *_RANK, *options.arguments()], os.environ)
        launcher = [*_LAUNCHER, arguments.nproc_per_node]
        become([sys.executable, *launcher, *options.arguments()], os.environ)
