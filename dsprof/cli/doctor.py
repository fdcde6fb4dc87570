"""`dsprof doctor`: would a run be recorded here, and if not, why not."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from dsprof._version import __version__
from dsprof.cli.loading import threshold_schema
from dsprof.cli.output import print_lines
from dsprof.cli.versions import loads_plugins, version_of
from dsprof.config import (
    CONFIG_VARIABLE,
    FIELDS,
    SWITCH,
    Config,
    find_settings,
    is_switched_on,
    unmirrored,
)
from dsprof.config.settings import Setting
from dsprof.errors import ConfigError
from dsprof.files.redaction import redact_text
from dsprof.recording.interpreter import NO_GIL, has_gil


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the answer; `no` means that DSPROF=1 would record nothing here."""

    state: Literal["ok", "no", "note"]
    text: str


class DoctorCommand:
    """Looks at this environment and says what recording would do in it."""

    name = "doctor"
    help = "check whether a run would be recorded here"
    description = """\
Check this Python and this environment as a training process sees them: would it
be recorded, and if not, why? Run it where the training runs.
Exit code 0: DSPROF=1 would record here; 1: it would not."""

    def prepare(self, parser: ArgumentParser) -> None:
        """Take no arguments."""

    def run(self, arguments: Namespace) -> int:
        """Print the checks."""
        checks = list(_checks(os.environ))
        lines = [f"{check.state:>4}  {redact_text(check.text)}" for check in checks]
        obstacles = sum(check.state == "no" for check in checks)
        if obstacles:
            lines += ["", f"DSPROF=1 would record nothing here: see each 'no' above ({obstacles})."]
        else:
            lines += ["", "DSPROF=1 would record here, from the first collective or step on."]
        print_lines(lines)
        return 1 if obstacles else 0


def _checks(variables: Mapping[str, str]) -> Iterator[Check]:
    yield Check(
        "ok", f"dsprof {__version__}, Python {platform.python_version()} ({sys.executable})"
    )
    if not has_gil():
        yield Check("no", NO_GIL)
    libraries = list(_libraries())
    yield from libraries
    yield from _parts_in_c()
    yield from _frameworks()
    is_whole = all(library.state == "ok" for library in libraries)
    if version_of("torch") and is_whole:
        yield from _hooks(variables)
    if is_whole:
        yield from _precisions(variables)
    yield from _switches(variables)
    yield from _configuration(variables, is_whole)
    yield Check(
        "note",
        "other nodes: DeepSpeed's launchers forward PYTHON_DSPROF*, the mirrors that dsprof sets; "
        "with torchrun, mpirun or srun set DSPROF=1 on each node",
    )


def _libraries() -> Iterator[Check]:
    for name in ("msgspec", "numpy"):
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - a broken extension module raises anything
            yield Check("no", f"{name} cannot be imported: {error}; reinstall it")
        else:
            yield Check("ok", f"{name} {version_of(name)}")


def _parts_in_c() -> Iterator[Check]:
    if find_spec("dsprof.recording.recorder._hot") is None:
        yield Check(
            "note",
            "hooks in C: not compiled, recording costs about half as much again; reinstall dsprof "
            "on Linux with gcc and Python's headers",
        )
    else:
        yield Check("ok", "hooks in C: compiled")


def _frameworks() -> Iterator[Check]:
    from importlib.metadata import entry_points  # slow to import

    torch = version_of("torch")
    if torch is None:
        yield Check("no", "torch is not installed in this Python")
    elif loads_plugins(torch):
        yield Check("ok", f"torch {torch} loads plugins")
    else:
        yield Check("no", f"torch {torch} loads no plugins: use dsprof run, or dsprof.enable()")
    deepspeed = version_of("deepspeed")
    if deepspeed:
        yield Check("ok", f"deepspeed {deepspeed}")
    else:
        yield Check("note", "deepspeed is not installed: only torch.distributed is recorded")
    if any(point.name == "dsprof" for point in entry_points(group="torch.backends")):
        yield Check("ok", "torch finds dsprof (entry point torch.backends)")
    else:
        yield Check("no", "torch does not find dsprof: install it into this Python with pip")


def _hooks(variables: Mapping[str, str]) -> Iterator[Check]:
    """Ask a process of its own: importing torch and deepspeed takes seconds, and may fail."""
    try:
        settings = find_settings(variables)
        interception, plugins = settings["interception"].value, settings["hooks"].value
    except ConfigError:  # which `_configuration` tells
        interception, plugins = Config().interception, ()
    command = [sys.executable, "-m", "dsprof.hooks.inventory", interception, *plugins]
    # The current folder may hold a torch.py of somebody else.
    apart = {**variables, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(
            command, env=apart, capture_output=True, text=True, errors="replace", timeout=120
        )
    except subprocess.TimeoutExpired:
        yield Check("note", "importing torch and deepspeed takes over two minutes here")
        return
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        yield Check("no", f"torch cannot be hooked: {said[-1]}")
        return
    # Libraries print, too, some of them when the process ends.
    answers = (line for line in done.stdout.splitlines() if line.startswith('{"c10d"'))
    lacks = json.loads(next(answers, "{}"))
    whole = ", ".join(name for name in lacks if not lacks[name])
    yield Check("ok", f"complete hooks: {whole}")
    for name, whys in lacks.items():
        for why in whys:
            yield Check("note", f"hook {name}: {why}")


def _precisions(variables: Mapping[str, str]) -> Iterator[Check]:
    """Name the precisions that are slow on this CPU; the report judges devices."""
    from dsprof.environment import machine, precision

    if machine.attempt(machine.accelerators, list[machine.Accelerator]()):
        return
    found = precision.facts(variables)
    slow = [name for name in ("bf16", "fp16") if found.get(f"cpu_{name}") == "no"]
    if slow:
        yield Check(
            "note", f"this CPU does not accelerate {' and '.join(slow)}: use fp32 for CPU training"
        )


def _switches(variables: Mapping[str, str]) -> Iterator[Check]:
    if variables.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield Check("no", "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading it: unset it")
    value = unmirrored(variables).get(SWITCH)
    if is_switched_on(variables):
        yield Check("ok", f"DSPROF={value}: recording is switched on")
    elif value:
        yield Check("note", f"DSPROF={value}: recording is switched off; DSPROF=1 switches it on")
    else:
        yield Check("note", "DSPROF is not set: DSPROF=1 or dsprof run switches recording on")


def _configuration(variables: Mapping[str, str], is_whole: bool) -> Iterator[Check]:
    has_rules = is_whole and unmirrored(variables).get(CONFIG_VARIABLE)
    try:
        settings = find_settings(variables, schema=threshold_schema() if has_rules else None)
    except ConfigError as error:
        for mistake in str(error).splitlines():
            yield Check("no", mistake)
        return
    width = max(map(len, FIELDS))
    for name, setting in settings.items():
        shown = "all" if name == "steps" and setting.value is None else _shown(setting)
        yield Check("ok", f"{name:<{width}} = {shown} ({setting.origin})")
    yield _output_folder(Path(settings["out"].value))


def _shown(setting: Setting) -> str:
    if isinstance(setting.value, tuple):
        return ", ".join(setting.value) or "none"
    return "none" if setting.value is None else str(setting.value)


def _output_folder(folder: Path) -> Check:
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if not os.path.isdir(existing):
        return Check("no", f"{folder}: {existing} is not a folder; set DSPROF_OUT to another")
    try:  # a file system may refuse what permissions allow
        tempfile.TemporaryDirectory(prefix="dsprof_", dir=existing).cleanup()
    except OSError:
        return Check("no", f"{folder} cannot be written; set DSPROF_OUT to another folder")
    return Check("ok", f"traces go to {folder.absolute()}")
