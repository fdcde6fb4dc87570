"""Config: defaults < YAML file < DSPROF_* variables < enable(**options).

A mistake anywhere is a ConfigError that lists all mistakes, each with its place. Recording reads
the top level of the YAML file; `dsprof report` also reads its section `rules:`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dsprof.config.files import ConfigFile
from dsprof.config.settings import Bounds, Setting, checked, did_you_mean, raise_all, without_none
from dsprof.files.remote import is_address

SWITCH = "DSPROF"
CONFIG_VARIABLE = "DSPROF_CONFIG"
PLUGINS_VARIABLE = "DSPROF_PLUGINS"
CACHE_VARIABLE = "DSPROF_CACHE"
COMMAND_PID = "_DSPROF_COMMAND_PID"
"""Set for the process that says if nothing was recorded; no setting, so without PREFIX."""
OBSERVER = "_DSPROF_OBSERVER"
"""The address of who watches that process from beside it."""
PREFIX = "DSPROF_"
MIRROR_PREFIX = "PYTHON_"
"""DeepSpeed's launchers forward only some prefixes to other nodes; this one is among them."""


def _option(default: Any, text: str, minimum: int | None = None, maximum: int | None = None) -> Any:
    metadata = {"help": text, "minimum": minimum, "maximum": maximum}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of a recording; `metadata["help"]` of a field describes it."""

    out: str = _option("dsprof-out", "folder for the trace files")
    interception: Literal["auto", "dispatcher", "native", "process_group"] = _option(
        "auto",
        "where collectives are intercepted: dispatcher sees all of them; process_group costs less "
        "but misses those issued from C++; auto starts with process_group and switches to "
        "dispatcher when C++ code communicates, through the kernels of dsprof build if they exist; "
        "native is dispatcher through these kernels from the start",
    )
    mode: Literal["window", "always"] = _option(
        "window",
        "window records the steps of start_step, steps and every in detail until budget_mb is "
        "spent; always records the whole run within budget_mb: sums of all steps, and details of "
        "the newest and of selected ones",
    )
    start_step: int = _option(0, "first optimizer step recorded in detail", minimum=0)
    steps: int | None = _option(
        None,
        "number of steps recorded from start_step on (all if not set); with mode: always, "
        "start_step, steps and every are ignored",
        minimum=1,
    )
    every: int = _option(1, "record every n-th of these steps in detail", minimum=1)
    budget_mb: int = _option(
        256, "megabytes of trace per rank; beyond that only counters are written", minimum=1
    )
    capture_signal: Literal["none", "SIGUSR1", "SIGUSR2"] = _option(
        "none",
        "with mode: always, a signal that makes all ranks keep the next 32 steps in detail; your "
        "own handler of it is called as before",
    )
    capture_profiler: bool = _option(
        False,
        "with mode: always, also run torch.profiler in at most 20 of the steps that you or a rank "
        "asked for",
    )
    hooks: tuple[str, ...] = _option((), "hooks of plugins to enable, by name")
    hang_after: float | Literal["auto"] = _option(
        "auto",
        "seconds without progress, with a collective in flight, after which a rank suspects a "
        "hang; auto follows the pace of the run, 0 switches the watchdog off",
        minimum=0,
    )
    on_hang: Literal["report", "dump", "abort"] = _option(
        "report",
        "what to do when a run is stuck: report prints which rank and why, dump also reads the "
        "stacks in C++ with py-spy, abort also ends the process with exit code 75",
    )
    anonymize: bool = _option(False, "replace the names of hosts, users and folders")
    metrics_port: int | None = _option(
        None,
        "port of 127.0.0.1 at which a process of local rank 0 answers Prometheus",
        minimum=1,
        maximum=65535,
    )
    alerts: str | None = _option(
        None,
        "YAML file with the command or webhook to which a process of rank 0 sends findings",
    )


_OFF = ("0", "no", "off", "false")

FIELDS = MappingProxyType({field.name: field for field in dataclasses.fields(Config)})
VARIABLES = MappingProxyType({PREFIX + name.upper(): name for name in FIELDS})


def is_switched_on(variables: Mapping[str, str]) -> bool:
    """Say whether DSPROF (or its mirror) asks for recording; 0, no, off and false do not."""
    return unmirrored(variables).get(SWITCH, "").lower() not in ("", *_OFF)


def has_plugins(variables: Mapping[str, str]) -> bool:
    """Say whether plugins may be loaded: DSPROF_PLUGINS=0, or no, off, false, leaves them out."""
    return unmirrored(variables).get(PLUGINS_VARIABLE, "").lower() not in _OFF


def mirrored(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the PYTHON_DSPROF* mirrors of all DSPROF* in `variables`."""
    return {MIRROR_PREFIX + name: value for name, value in variables.items() if _is_ours(name)}


def unmirrored(variables: Mapping[str, str]) -> dict[str, str]:
    """Return all DSPROF* of `variables`; where one is not set its mirror is used."""
    own = {name: value for name, value in variables.items() if _is_ours(name)}
    names = {name: name.removeprefix(MIRROR_PREFIX) for name in variables.keys() - own.keys()}
    mirrors = {ours: variables[name] for name, ours in names.items() if _is_ours(ours)}
    return mirrors | own


def load_config(variables: Mapping[str, str], options: Mapping[str, Any]) -> Config:
    """Build the configuration of a recording from os.environ and the options of `enable`.

    Raises:
        ConfigError: something in the file, the variables or the options is wrong; it lists all.
    """
    settings = find_settings(variables, options)
    return Config(**{name: setting.value for name, setting in settings.items()})


def without_idle(config: Config) -> tuple[Config, str]:
    """Leave out settings that do nothing in the mode of a recording; name them in a sentence."""
    is_always = config.mode == "always"
    unused = (
        ("start_step", "steps", "every") if is_always else ("capture_signal", "capture_profiler")
    )
    idle = [name for name in unused if getattr(config, name) != FIELDS[name].default]
    if not idle:
        return config, ""
    defaults: dict[str, Any] = {name: FIELDS[name].default for name in idle}
    listed = " and ".join(filter(None, (", ".join(idle[:-1]), idle[-1])))
    names = f"{listed} {'is' if len(idle) == 1 else 'are'} ignored"
    why = "mode: always records all steps" if is_always else "only mode: always has captures"
    return dataclasses.replace(config, **defaults), f"{names}: {why}"


def find_settings(
    variables: Mapping[str, str],
    options: Mapping[str, Any] = MappingProxyType({}),
    schema: Mapping[str, type] | None = None,
) -> dict[str, Setting]:
    """Find the effective value of each field of `Config`, and where it was set.

    With `schema`, as for `load_thresholds`, the file's thresholds are checked as well.

    Raises:
        ConfigError: as `load_config`.
    """
    mistakes: list[str] = []
    ours = unmirrored(variables)
    path = options.get("config") or ours.get(CONFIG_VARIABLE)
    found = {name: Setting(field.default, "default") for name, field in FIELDS.items()}
    if path and is_address(os.fspath(path)):  # not repeated: it may contain a password
        origin = "option config" if options.get("config") else CONFIG_VARIABLE
        mistakes.append(f"{origin}: must be a local file, got an address; copy the file here")
    elif path:
        file = ConfigFile(path, mistakes)
        found |= checked(file.options(FIELDS), Config, mistakes)
        if schema is not None:
            _check_thresholds(file, schema, mistakes)
    found |= checked(_from_variables(ours, mistakes), Config, mistakes)
    found |= checked(_from_options(options, mistakes), Config, mistakes)
    if is_address(found["out"].value):
        mistakes.append(
            f"{found['out'].origin}: 'out' must be a folder, got an address; name a folder, "
            "and copy it to the store after the run"
        )
    raise_all(mistakes)
    # No shell has seen a file, nor the variables of a container.
    out = os.path.expanduser(found["out"].value)
    return found | {"out": dataclasses.replace(found["out"], value=out)}


def load_thresholds(path: str | os.PathLike[str], schema: Mapping[str, type]) -> dict[str, Any]:
    """Read the section `rules:` (rule id -> threshold -> value) of a configuration file.

    `schema` gives the frozen dataclass of each rule's thresholds. The result holds an instance of
    it for every rule that the file names. The rest of the file is checked as well.

    Raises:
        ConfigError: something in the file is wrong; it lists all.
    """
    mistakes: list[str] = []
    file = ConfigFile(path, mistakes)
    checked(file.options(FIELDS), Config, mistakes)
    thresholds = _check_thresholds(file, schema, mistakes)
    raise_all(mistakes)
    return {rule: schema[rule](**values) for rule, values in thresholds.items()}


def _check_thresholds(
    file: ConfigFile, schema: Mapping[str, type], mistakes: list[str]
) -> dict[str, dict[str, Any]]:
    """Return the thresholds that fit, rule by rule, and add what is wrong to `mistakes`."""
    fitting = {}
    for rule, found in file.thresholds(schema):
        settings = checked(found, schema[rule], mistakes, _bounds_of_threshold)
        fitting[rule] = {name: setting.value for name, setting in settings.items()}
    return fitting


def _bounds_of_threshold(field: dataclasses.Field[Any]) -> Bounds:
    """No threshold is negative, and no share is more than the whole unless the field says so."""
    largest = 1 if field.name.endswith("_share") else None
    return 0, field.metadata.get("maximum", largest)


_BESIDE_SETTINGS = (CONFIG_VARIABLE, PLUGINS_VARIABLE, CACHE_VARIABLE)


def _is_ours(name: str) -> bool:
    return name == SWITCH or name.startswith(PREFIX)


def _from_variables(variables: Mapping[str, str], mistakes: list[str]) -> dict[str, Setting]:
    """Read DSPROF_*; an empty variable counts as not set."""
    found = {}
    for variable, text in variables.items():
        if variable in VARIABLES and text:
            name = VARIABLES[variable]
            value = parsed(name, text)
            found[name] = Setting(value, variable, reprlib.repr(value))
        elif variable not in (SWITCH, *_BESIDE_SETTINGS, *VARIABLES):
            near = did_you_mean(variable, [*_BESIDE_SETTINGS, *VARIABLES])
            mistakes.append(f"environment: unknown variable '{variable}'{near}")
    return found


def _from_options(options: Mapping[str, Any], mistakes: list[str]) -> dict[str, Setting]:
    found = {}
    for name, value in options.items():
        if name in FIELDS:
            value = os.fspath(value) if isinstance(value, os.PathLike) else value
            found[name] = Setting(value, f"option {name}", reprlib.repr(value))
        elif name != "config":
            near = did_you_mean(name, ["config", *FIELDS])
            mistakes.append(f"options: unknown option '{name}'{near}")
    return found


_WORDS = {"true": True, "yes": True, "on": True, "1": True}
_WORDS |= {"false": False, "no": False, "off": False, "0": False}


def parsed(name: str, text: str) -> Any:
    """Turn text into what the field `name` takes, or leave it for the check to refuse."""
    kind = get_type_hints(Config)[name]
    if text == "null" and kind is not without_none(kind):
        return None
    if get_origin(kind) is tuple:
        return [item.strip() for item in text.split(",")]
    if kind is bool:
        return _WORDS.get(text.lower(), text)
    if without_none(kind) is int and re.fullmatch(r"[-+]?\d{1,18}", text):
        return int(text)
    if float in get_args(kind) and re.fullmatch(r"[-+]?\d{1,9}(\.\d{1,9})?", text):
        return float(text)
    return text
