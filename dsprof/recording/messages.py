"""What a recording says to the user, on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dsprof.config import OBSERVER
from dsprof.errors import argument
from dsprof.files.redaction import redact_text
from dsprof.trace.host_folders import traces_in
from dsprof.trace.writing.writer import TraceWriter


def say(text: str) -> None:
    """Print a line of ours on stderr, without anything that could be a secret."""
    with suppress(OSError, ValueError):  # a full or closed stderr
        print(f"dsprof: {redact_text(text)}", file=sys.stderr, flush=True)


def say_recorded(writer: TraceWriter, steps: int, folder: Path, out: str) -> None:
    """Say where the traces are, and what to type next."""
    counted = writer.counted_only_steps
    apart = f" ({counted} of them only in counters)" if counted else ""
    if writer.lost_steps:
        apart = f" ({writer.lost_steps} of them missing or incomplete: {writer.disk_error})"
    say(
        f"steps recorded: {steps}{apart}, trace files: {len([*traces_in(folder)])}; "
        f"see them with: dsprof report {argument(out)}"
    )


def say_failed(failures: Mapping[str, str]) -> None:
    """Say why nothing was recorded."""
    if "session" in failures:
        say(f"nothing was recorded: {failures['session']}")
    else:
        failed = "; ".join(f"{hook}: {why}" for hook, why in failures.items())
        say(f"nothing was recorded. Failed hooks: {failed}")


def say_silent(folder: Path, since_s: float, *, has_missed: bool) -> None:
    """Say that a program has not communicated, unless a child of it has since then."""
    if any(path.stat().st_mtime >= since_s for path in traces_in(folder)):
        return
    if os.environ.get("WORLD_SIZE", "1") != "1" or has_missed:
        say(
            "nothing was recorded. Recording begins with torch.distributed."
            "init_process_group(), and the program communicated with no other rank after "
            "it (RPC is not recorded). Call it before the loop, even if the program makes "
            "its own process groups"
        )
    else:
        run = "dsprof run -- " if OBSERVER in os.environ else ""
        say(
            "nothing was recorded: the program communicated with no other rank through "
            "torch.distributed (its RPC is not recorded). Start several, such as: "
            f"{run}torchrun --nproc-per-node 2 train.py; profile a single process with "
            "torch.profiler, and give its trace to dsprof report"
        )
