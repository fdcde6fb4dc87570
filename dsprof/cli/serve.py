"""`dsprof serve`: the report of a run as a local web application."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from threading import Event, Thread
from typing import TYPE_CHECKING

from dsprof.cli.delivery import show_address
from dsprof.cli.loading import (
    Reading,
    add_judging,
    add_paths,
    add_reading,
    load_run_and_diagnosis,
    local_path,
)
from dsprof.cli.output import print_bytes
from dsprof.errors import DsprofError

if TYPE_CHECKING:
    from dsprof.live.site import Site


class ServeCommand:
    """Judges a run and shows it on 127.0.0.1 until it is interrupted."""

    name = "serve"
    help = "show a run in a browser, with every step"
    description = """\
Show the report of a run in a browser on this machine, with each step of each
rank in detail. Steps are read from the traces on request.

  dsprof serve dsprof-out            prints the address; Ctrl-C ends it
  dsprof serve dsprof-out --open     and opens it in a browser
  dsprof serve dsprof-out --live     updates the page while the run goes on

The address works once and on this machine only. To see a run on another
machine, forward the port: ssh -L 8642:127.0.0.1:8642 HOST"""

    def prepare(self, parser: ArgumentParser) -> None:
        add_paths(parser, "trace file, or folder of traces", local_path)
        parser.add_argument(
            "--port", type=port, default=8642, metavar="N", help="port (default: 8642; 0: any)"
        )
        parser.add_argument("--open", action="store_true", help="open the address in a browser")
        parser.add_argument(
            "--live", action="store_true", help="update the page while the run goes on"
        )
        add_judging(parser)
        add_reading(parser)

    def run(self, arguments: Namespace) -> int:
        """Serve until interrupted."""
        from dsprof.live.http import Server
        from dsprof.live.updating import UpdatingSite

        reading = Reading.of(arguments)
        site = UpdatingSite(lambda: _site(arguments, reading))
        try:
            server = Server(arguments.port, site.page, lambda: arguments.live and site.is_growing)
        except OSError as error:
            raise DsprofError(
                f"cannot listen on port {arguments.port}: {error.strerror}; choose another with "
                "--port N, or any with --port 0"
            ) from None
        with server:
            print_bytes(f"{server.gate.address}\nIt works once. Ctrl-C ends.\n".encode())
            if arguments.open:
                # A browser in this terminal ends later: it must be answered meanwhile.
                Thread(target=show_address, args=[server.gate.address], daemon=True).start()
            if arguments.live:
                Thread(target=site.follow, args=[Event()], daemon=True).start()
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                print_bytes(b"\n")
        return 0


def _site(arguments: Namespace, reading: Reading) -> Site:
    from dsprof.live.site import Site, check_confined
    from dsprof.trace.run import find_run, is_growing
    from dsprof.trace.selection import EVERYTHING

    # Asked before: a run that ends while it is judged is judged once more.
    was_growing = arguments.live and is_growing(
        find_run(arguments.paths, reading.selection or EVERYTHING)
    )
    run, diagnosis = load_run_and_diagnosis(
        arguments.paths, arguments.config, arguments.baseline, reading
    )
    check_confined(run, arguments.paths)
    return Site(run, diagnosis, was_growing=was_growing)


def port(text: str) -> int:
    """Return the number of a port.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not (text.isdecimal() and int(text) < 1 << 16):
        raise ArgumentTypeError(f"invalid port '{text}': must be 0 to 65535")
    return int(text)
