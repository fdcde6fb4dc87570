"""How a command hands over a document: in which format, and where to."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from html import unescape
from pathlib import Path
from typing import Any, Protocol

from dsprof.cli.loading import local_path
from dsprof.cli.output import (
    STANDARD_OUTPUT,
    check_writable,
    print_bytes,
    print_lines,
    tell,
    terminal,
)
from dsprof.config.settings import did_you_mean, in_one_line
from dsprof.errors import DsprofError

_HEAD_BYTES = 1 << 12
_RUN = re.compile(rb'<meta name="dsprof-run" content="([^"]*)">')


class Render(Protocol):
    """Renders what a command found."""

    def __call__(self, format_name: str, /, **options: Any) -> bytes:
        """Return the document in the format of this name."""
        ...


def add_delivery(
    parser: ArgumentParser,
    formats: Callable[[], Sequence[str]],
    default: str,
    page: str,
    named: str = "html, text or json",
) -> None:
    """Add --format, one of `formats()`, and --output; html goes to the file `page`.

    `named` says the formats in the help, for which no plugins are loaded.
    """
    parser.set_defaults(formats=formats, usual_format=default)
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        help=f"{named} (default: as FILE ends, else {default})",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=local_path,
        metavar="FILE",
        help=f"output file; - is standard output (default: {page} for html, else -)",
    )
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    add_quiet(parser, "print no summary of what is written to a file")


def add_quiet(parser: ArgumentParser, text: str) -> None:
    """Add --quiet, which also hides the progress."""
    parser.add_argument("-q", "--quiet", action="store_true", help=text)


def destination(arguments: Namespace, page: str, inputs: Iterable[Path]) -> Path:
    """Return where the document goes, before the work that it costs.

    Raises:
        DsprofError: there is no such format, or it cannot be written there.
    """
    names = arguments.formats()  # not while arguments are parsed: --no-plugins may follow
    if arguments.format is None:
        ending = arguments.output.suffix[1:].lower() if arguments.output else ""
        ending = ending.replace("txt", "text")
        if ending and ending not in names:
            raise DsprofError(
                f"unknown format '{in_one_line(ending)}' of {arguments.output}"
                f"{did_you_mean(ending, names)}; give --format to write it under this name"
            )
        arguments.format = ending or arguments.usual_format
    if arguments.format not in names:
        raise DsprofError(
            f"unknown --format value '{in_one_line(arguments.format)}'"
            f"{did_you_mean(arguments.format, names)}"
        )
    default = Path(page) if arguments.format == "html" else STANDARD_OUTPUT
    output: Path = arguments.output or default
    if output != STANDARD_OUTPUT:
        check_writable(output, inputs)
    if arguments.open and (arguments.format != "html" or output == STANDARD_OUTPUT):
        raise DsprofError("--open needs a page in a file; use --format html, and no -o -")
    return output


def deliver(render: Render, arguments: Namespace, output: Path, noun: str, **options: Any) -> None:
    """Write the document; of one that goes to a file the terminal shows the text.

    Raises:
        OutputError: it cannot be written.
    """
    from dsprof.reports.write import write_whole

    if output == STANDARD_OUTPUT:
        print_bytes(render(arguments.format, **options, **terminal()))
        return
    document = render(arguments.format, **options)
    if os.path.exists(output) and output.is_fifo():
        tell(f"waiting for a reader of {output}")
    replaced = _run_of(output)
    write_whole(output, document)
    if replaced and replaced != _named_run(document):
        tell(f"{output} was the report of {replaced}: replaced")
    if not arguments.quiet:
        print_bytes(render("text", **terminal()))
        print_lines(["", f"{noun}: {os.path.realpath(output)}"])
    if arguments.open:
        show_address(output.resolve().as_uri())


def _run_of(page: Path) -> str:
    """Return the run that an existing page reports on; "" if it is none of ours."""
    try:
        if not page.is_file():  # a pipe would wait for a writer
            return ""
        with page.open("rb") as file:
            return _named_run(file.read(_HEAD_BYTES))
    except OSError:
        return ""


def _named_run(page: bytes) -> str:
    found = _RUN.search(page, 0, _HEAD_BYTES)
    return unescape(found[1].decode(errors="replace")) if found else ""


def show_address(address: str) -> None:
    """Open an address in a browser, or name it where none starts."""
    import webbrowser

    if not webbrowser.open(address):
        tell(f"no browser starts here; open {address}")
