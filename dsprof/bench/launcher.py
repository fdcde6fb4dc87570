"""Starts the ranks of `dsprof bench` by torchrun, and ends as the first of them that failed.

`python -m dsprof.bench.launcher N OPTION...`: N is what --nproc-per-node takes.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from signal import Signals

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from dsprof.bench.groups import devices_of
from dsprof.bench.options import Options, add_options
from dsprof.errors import DsprofError


def main(argv: Sequence[str]) -> int:
    """Measure with several ranks, and return the exit code."""
    parser = ArgumentParser()
    parser.add_argument("ranks")
    add_options(parser)
    arguments = parser.parse_args(argv)
    options = Options.of(arguments)
    try:
        if options.backend:
            devices_of(options.backend)
        _launch(_ranks(arguments.ranks), options)
    except DsprofError as error:
        print(f"dsprof: {error}", file=sys.stderr)
        return 2
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        return _exit_code(error)
    return 0


def _launch(ranks: int, options: Options) -> None:
    started = ["--standalone", "--nproc-per-node", str(ranks), "-m", "dsprof.bench"]
    torchrun.run(torchrun.parse_args([*started, *options.arguments()]))


def _ranks(text: str) -> int:
    """Return how many ranks torchrun would start.

    Raises:
        DsprofError: it does not know, or fewer than two.
    """
    try:
        ranks: int = torchrun.determine_local_world_size(text)
    except ValueError as error:
        why = str(error).rstrip(".")
        raise DsprofError(f"--nproc-per-node {text}: {why}; give a number") from None
    if ranks < 2:
        raise DsprofError(
            "a single rank cannot communicate: set --nproc-per-node to 2 or more; with one GPU "
            "also set --backend gloo, because ranks of NCCL cannot share a GPU"
        )
    return ranks


def _exit_code(error: ChildFailedError) -> int:
    rank, failure = error.get_first_failure()
    if failure.exitcode >= 0:
        return int(failure.exitcode)
    signal = Signals(-failure.exitcode)
    print(f"dsprof: rank {rank} was ended by {signal.name}; nothing was written", file=sys.stderr)
    return 128 + signal


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
