"""Options of a measurement; no torch, so that mistakes are reported at once."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LARGEST_BYTES = 1 << 36


@dataclass(frozen=True, slots=True)
class Options:
    """`sizes` () and `backend` "" leave the choice to what the device is."""

    output: Path
    sizes: tuple[int, ...] = ()
    backend: str = ""

    @classmethod
    def of(cls, arguments: Namespace) -> Options:
        """Take them from parsed arguments."""
        return cls(arguments.output, arguments.sizes, arguments.backend)

    def arguments(self) -> list[str]:
        """Return the arguments that give these options again."""
        sizes = ["--sizes", ",".join(map(str, self.sizes))] if self.sizes else []
        backend = ["--backend", self.backend] if self.backend else []
        return ["--output", str(self.output), *sizes, *backend]


def add_options(parser: ArgumentParser) -> None:
    """Add the arguments that `Options.of` reads."""
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("dsprof-baseline.json"),
        metavar="FILE",
        help="baseline file to write (default %(default)s)",
    )
    parser.add_argument(
        "--sizes",
        type=_sizes,
        default=(),
        metavar="LIST",
        help="message sizes such as 4K,1M,64M (default: up to 64M, on accelerators up to 1G)",
    )
    parser.add_argument(
        "--backend", default="", metavar="NAME", help="gloo, nccl, ... (default: the device's own)"
    )


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({_size(part) for part in text.split(",")}))


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d{1,12})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    nbytes = int(found[1]) * _UNITS[found[2].upper()] if found else 0
    if not 4 <= nbytes <= _LARGEST_BYTES:
        raise ArgumentTypeError(f"{text!r} is not a size from 4 bytes to 64G; write 4K,1M,64M")
    return nbytes


def default_sizes(device: str) -> Sequence[int]:
    """Return sizes in steps of four, from where latency rules to where bandwidth does."""
    largest = 64 << 20 if device == "cpu" else 1 << 30
    return [size for n in range(16) if (size := 4096 << 2 * n) <= largest]
