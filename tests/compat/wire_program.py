"""Runs rows of the wire table with any torch since 2.4, and keeps which one ended the run.

    wire_program.py PROGRESS ROW[,ROW...] ARGUMENT...

The arguments are those of tests/dist/programs/wire_table.py. While a row runs there is
PROGRESS/rankN.json of each rank: the row, and its error if it has failed. That ends the run, for
what follows a failure proves nothing.
"""

import functools
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from tests.compat import old_names

old_names.give()

from tests.dist.programs import wire_rows, wire_table  # noqa: E402

HANGS_AFTER = timedelta(seconds=30)


def noted(name: str, row: wire_rows.Row, note: Path) -> wire_rows.Row:
    """Return `row`, which writes down that it is under way and how it fails."""

    def attempt() -> None:
        note.write_text(json.dumps([name, ""]))
        try:
            row()
        except Exception as error:
            said = str(error).partition("\n")[0]
            note.write_text(json.dumps([name, f"{type(error).__name__}: {said}"]))
            raise
        note.unlink()

    return attempt


def main() -> None:
    progress, rows = Path(sys.argv.pop(1)), sys.argv.pop(1).split(",")
    progress.mkdir(parents=True, exist_ok=True)
    note = progress / f"rank{os.environ['RANK']}.json"
    for table in (wire_rows.ROWS, wire_rows.COMPILED, wire_rows.MESH):
        kept = {name: noted(name, row, note) for name, row in table.items() if name in rows}
        table.clear()
        table.update(kept)
    dist.init_process_group = functools.partial(dist.init_process_group, timeout=HANGS_AFTER)
    wire_table.main()


if __name__ == "__main__":
    main()
