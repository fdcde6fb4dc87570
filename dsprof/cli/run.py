"""`dsprof run`: start a command that records itself."""

from __future__ import annotations

import os
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from dsprof.cli.loading import threshold_schema
from dsprof.cli.output import tell
from dsprof.cli.start import become
from dsprof.cli.versions import loads_plugins, version_of
from dsprof.config import (
    COMMAND_PID,
    CONFIG_VARIABLE,
    FIELDS,
    OBSERVER,
    PREFIX,
    SWITCH,
    Config,
    find_settings,
    mirrored,
    parsed,
    unmirrored,
)
from dsprof.config.settings import without_none
from dsprof.errors import DsprofError
from dsprof.recording.observer import dismiss, observe

_STARTUP = Path(__file__).parents[1] / "recording/startup"


class RunCommand:
    """Sets the environment variables that switch recording on, and becomes the command."""

    name = "run"
    help = "start a training command and record it"
    description = """\
Start a command with recording switched on; the script needs no change.

  dsprof run -- deepspeed train.py --deepspeed_config ds.json
  dsprof run --start-step 10 --steps 20 -- torchrun --nproc-per-node 8 train.py

It sets DSPROF=1, one variable for each option given, and their PYTHON_ mirrors,
which DeepSpeed's launchers forward to other nodes. Where a launcher forwards
nothing, set DSPROF=1 on each node."""

    def prepare(self, parser: ArgumentParser) -> None:
        """Add one option for each field of `Config`."""
        parser.usage = "dsprof run [OPTION...] -- COMMAND..."
        kinds = get_type_hints(Config)
        for name, field in FIELDS.items():
            option, text = "--" + name.replace("_", "-"), field.metadata["help"]
            if kinds[name] is bool:
                parser.add_argument(option, action="store_const", const="true", help=text)
            else:
                metavar = _metavar(without_none(kinds[name]), field.default)
                default = "" if field.default in (None, ()) else f" (default {field.default})"
                parser.add_argument(option, metavar=metavar, help=text + default)
        parser.add_argument("--config", metavar="FILE", help="YAML file with these settings")
        parser.add_argument("command", nargs=REMAINDER, metavar="COMMAND", help="command to start")

    def run(self, arguments: Namespace) -> int:
        """Replace this process by the command."""
        command: list[str] = arguments.command
        if command[:1] == ["--"]:
            command = command[1:]
        if not command:
            raise DsprofError("no command to start; type it after --: dsprof run -- COMMAND...")
        variables, out = _variables(os.environ, vars(arguments))
        if not loads_plugins(torch := version_of("torch")):
            tell(
                f"torch {torch} loads no plugins (2.6 and later do), so recording starts from "
                "PYTHONPATH, which python -I and -E do not read"
            )
            paths = (str(_STARTUP), variables.get("PYTHONPATH", ""))
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        variables[COMMAND_PID] = str(os.getpid())
        variables[OBSERVER] = observe(Path(out))
        try:
            become(command, variables)
        except DsprofError:
            dismiss(variables[OBSERVER])
            raise


def _metavar(kind: object, default: object) -> str:
    if get_origin(kind) is Literal:
        return f"{{{','.join(get_args(kind))}}}"
    if kind is int:
        return "N"
    return "FILE" if default is None else "VALUE"


def _variables(
    environment: Mapping[str, str], arguments: Mapping[str, str | None]
) -> tuple[dict[str, str], str]:
    """Return the environment of the command, and the folder of its traces.

    Raises:
        ConfigError: it, or an option, holds a setting that recording would refuse.
    """
    given = {name: value for name in FIELDS if (value := arguments[name]) is not None}
    asked = {PREFIX + name.upper(): value for name, value in given.items()}
    if (file := arguments["config"]) is not None:
        asked[CONFIG_VARIABLE] = file
    ours = unmirrored(environment) | {SWITCH: "1"} | asked
    others = {name: value for name, value in ours.items() if name not in asked}
    options = {name: parsed(name, value) for name, value in given.items()} | {"config": file}
    has_file = bool(ours.get(CONFIG_VARIABLE))
    settings = find_settings(others, options, threshold_schema() if has_file else None)
    return {**environment, **ours, **mirrored(ours)}, settings["out"].value
