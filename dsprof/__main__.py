"""The command `dsprof`; errors are one line each, never a traceback."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from argparse import SUPPRESS
from collections.abc import Sequence

from dsprof._version import __version__
from dsprof.cli import COMMANDS, Parser
from dsprof.config import PLUGINS_VARIABLE
from dsprof.errors import DsprofError, escaped

_DESCRIPTION = """\
What a distributed training run did on the wire, what it cost, why, and which
setting to change.

  dsprof run -- deepspeed train.py ...    record a run (or set DSPROF=1 yourself)
  dsprof report dsprof-out                write report.html, print the findings
  dsprof lint ds_config.json              check a configuration before training"""

_EXIT_CODES = """\
exit codes (docs/reference/cli.md):
  0    done, no problem found
  1    hang, check, lint, env, doctor, bench: there is a problem
  2    mistake in the command, or a file that cannot be read or written
  3    bug in dsprof
  130  interrupted
  141  the reader of the output closed it"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit code (`_EXIT_CODES`)."""
    atexit.register(gc.freeze)  # else the collection at exit visits all that was read
    if sys.stderr is None:  # as after 2>&- in a shell; print() would take standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it stays open
    try:
        arguments = _parser().parse_args(argv)
        if "no_plugins" in arguments:
            os.environ[PLUGINS_VARIABLE] = "0"  # so that processes started later have none either
        code: int = arguments.run(arguments) or 0
        _say_problems()
    except DsprofError as error:
        for line in str(error).splitlines():
            print(f"dsprof: {_redacted(line)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141  # what a shell reports of a program that SIGPIPE ended
    except MemoryError:
        print(
            "dsprof: out of memory; give fewer files, or a larger machine",
            file=sys.stderr,
        )
        return 2
    except Exception as error:  # noqa: BLE001 - the last line of defence
        if isinstance(error, FileNotFoundError) and not _has_folder():
            print("dsprof: the current folder was removed; change to another one", file=sys.stderr)
            return 2
        print(f"dsprof: a bug in dsprof: {_described(error)}; please report it", file=sys.stderr)
        return 3
    return code


def _has_folder() -> bool:
    """Say whether the current folder still exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _described(error: Exception) -> str:
    """Return type, message and place of an error in one line."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place else ""
    return f"{type(error).__name__}: {escaped(_redacted(' '.join(str(error).split())))}{where}"


def _redacted(text: str) -> str:
    from dsprof.files.redaction import redact_text  # which only errors need

    return redact_text(text)


def _parser() -> Parser:
    parser = Parser(prog="dsprof", description=_DESCRIPTION, epilog=_EXIT_CODES)
    parser.add_argument("--version", action="version", version=f"dsprof {__version__}")
    _add_no_plugins(parser)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    parser.set_defaults(root=parser, run=lambda _: print(parser.format_help(), end=""))
    for command in COMMANDS:
        one = commands.add_parser(command.name, help=command.help, description=command.description)
        command.prepare(one)
        _add_no_plugins(one)
        one.set_defaults(run=command.run)
    return parser


def _add_no_plugins(parser: Parser) -> None:
    parser.add_argument(
        "--no-plugins",
        action="store_true",
        default=SUPPRESS,
        help="load no plugins (docs/reference/plugins.md)",
    )


def _say_problems() -> None:
    """Name the plugins that could not be used, where any were looked for."""
    plugins = sys.modules.get("dsprof.plugins.entry_points")
    for problem in plugins.problems() if plugins else ():
        print(f"dsprof: {escaped(problem)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
