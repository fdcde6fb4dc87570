"""`dsprof hang`: why a run stands still or ended badly."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from dsprof.cli.output import print_bytes
from dsprof.errors import escaped


class HangCommand:
    """Names the rank that others wait for, in what, and why."""

    name = "hang"
    help = "name the rank that keeps a stuck run waiting"
    description = """\
Say why a run is stuck or crashed: which rank, in which collective, since
when, and who waits for it.

  dsprof hang dsprof-out                      of what the run has written
  dsprof hang dsprof-out --format json        for other programs

Exit code 0: no hang or crash is known; 1: there is one; 2: a file cannot be
read."""

    def prepare(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "paths", nargs="+", type=Path, metavar="PATH", help="trace file, or folder of traces"
        )
        parser.add_argument(
            "--format", default="text", choices=("text", "json"), help="default: text"
        )

    def run(self, arguments: Namespace) -> int:
        """Print the verdicts."""
        from dsprof.analysis.aggregates.endings import Endings
        from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
        from dsprof.analysis.run.hang_verdict import HEALTHY, verdicts
        from dsprof.analysis.summarise import summarise
        from dsprof.files.json_documents import json_document
        from dsprof.trace.run import find_run

        run = summarise(find_run(arguments.paths), [Endings, FlightRecorders])
        found = verdicts(run[Endings], run[FlightRecorders])
        if arguments.format == "json":
            print_bytes(json_document({"schema_version": 1, "verdicts": found}) + b"\n")
        else:
            lines = (line for one in found for line in (one.sentence, one.cause.text) if line)
            print_bytes("".join(f"{escaped(line)}\n" for line in lines).encode())
        return int(any(one.kind not in HEALTHY for one in found))
