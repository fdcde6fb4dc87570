"""`dsprof export`: a run for Perfetto, Chrome, spreadsheets and data frames."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO

from dsprof.cli.loading import add_epoch, add_paths, local_path, progress_on_terminal
from dsprof.cli.output import STANDARD_OUTPUT, check_writable, print_bytes, print_lines, tell
from dsprof.errors import OutputError

if TYPE_CHECKING:
    from dsprof.api.export.timeline import RankTracks

_TIMELINES = ("perfetto", "chrome")
_TABLES = ("csv", "parquet")
_CHUNK_BYTES = 1 << 20
_ROWS = ("collectives", "steps", "rank_steps", "flushes", "memory", "findings", "environment")


class ExportCommand:
    """Writes all ranks into one file of another program's format."""

    name = "export"
    help = "write a run for Perfetto, Chrome, CSV or Parquet"
    description = """\
Write all ranks of a run into one file, on one clock.

  dsprof export dsprof-out --to perfetto -o run.pftrace   for ui.perfetto.dev
  dsprof export dsprof-out --to chrome -o run.json        Trace Event JSON
  dsprof export dsprof-out --to csv -o calls.csv          a line per collective
  dsprof export dsprof-out --to parquet --table steps -o steps.parquet

Arrows of timelines join the ends of a collective on different ranks."""

    def prepare(self, parser: ArgumentParser) -> None:
        add_paths(parser, "trace file, or folder of traces")
        parser.add_argument(
            "--to", required=True, choices=(*_TIMELINES, *_TABLES), help="format of the file"
        )
        parser.add_argument(
            "-o",
            "--output",
            required=True,
            type=local_path,
            metavar="FILE",
            help="file to write; - is standard output",
        )
        parser.add_argument(
            "--table",
            choices=_ROWS,
            default=_ROWS[0],
            metavar="ROWS",
            help=f"rows for csv and parquet: {', '.join(_ROWS)} (default: %(default)s)",
        )
        add_epoch(parser)

    def run(self, arguments: Namespace) -> int:
        """Write the file, or leave what was there."""
        is_file = arguments.output != STANDARD_OUTPUT
        if is_file:
            check_writable(arguments.output, arguments.paths)
        write = _write_timeline if arguments.to in _TIMELINES else _write_table
        write(arguments)
        if is_file:
            print_lines([f"Exported: {os.path.realpath(arguments.output)}"])
        return 0


@contextmanager
def _writing(path: Path) -> Iterator[BinaryIO]:
    """Open what appears at `path`, or on standard output, when all is written."""
    from dsprof.reports.write import writing

    if path != STANDARD_OUTPUT:
        with writing(path) as file:
            yield file
        return
    try:
        with TemporaryFile() as file:
            yield file
            file.seek(0)
            for chunk in iter(partial(file.read, _CHUNK_BYTES), b""):
                print_bytes(chunk)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write to the folder of temporary files: {error.strerror}; set TMPDIR to one "
            "with more room, or write to a file with -o FILE"
        ) from None


def _write_timeline(arguments: Namespace) -> None:
    from dsprof.analysis.summarise import align_run
    from dsprof.api.export.chrome import write_chrome
    from dsprof.api.export.perfetto import write_perfetto
    from dsprof.api.export.timeline import each_rank
    from dsprof.trace.run import find_run
    from dsprof.trace.selection import Selection

    run = find_run(arguments.paths, Selection(epoch=arguments.epoch))
    ranks = _shown(each_rank(run, align_run(run)), len(run.files))
    write = write_perfetto if arguments.to == "perfetto" else write_chrome
    with _writing(arguments.output) as file:
        write(file, ranks)


def _shown(ranks: Iterator[RankTracks], count: int) -> Iterator[RankTracks]:
    """Pass the ranks on, and show how many are done."""
    progress = progress_on_terminal()
    for done, rank in enumerate(ranks, 1):
        yield rank
        progress(done, count)


def _write_table(arguments: Namespace) -> None:
    from dsprof.api.export.tables import write_csv, write_parquet
    from dsprof.api.loaded_run import load_run
    from dsprof.api.rows import installed

    if arguments.to == "parquet":
        installed("pyarrow")  # before the long part
    run = load_run(arguments.paths, arguments.epoch)
    rows = getattr(run, arguments.table)
    write = write_csv if arguments.to == "csv" else write_parquet
    with _writing(arguments.output) as file:
        write(file, rows)
    recorded = run.diagnosis.run.steps if arguments.table == "steps" else 0
    if recorded > len(rows):
        tell(f"{len(rows):,} of {recorded:,} steps; --table rank_steps has all, by rank")
