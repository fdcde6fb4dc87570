"""Variables, versions, machines and configuration."""

from __future__ import annotations

from typing import Any

import msgspec


class Difference(msgspec.Struct):
    """Something that is not the same on all ranks."""

    name: str
    values: dict[str, list[int]]  # value ("" for unset) -> ranks


class EngineSettings(msgspec.Struct):
    """The DeepSpeed configuration of one engine."""

    engine: int
    kind: str = ""  # class of the engine
    parameters: int | None = None  # elements that it trains
    written: dict[str, Any] = {}
    effective: dict[str, Any] = {}


class EnvironmentInfo(msgspec.Struct):
    """Variables, versions, limits; what differs between ranks is listed separately."""

    variables: dict[str, str] = {}  # common to all ranks present
    effective: dict[str, str] = {}
    files: dict[str, dict[str, str]] = {}
    versions: dict[str, str] = {}
    gpus: list[str] = []
    network_devices: list[str] = []
    limits: dict[str, int] = {}
    redacted: list[str] = []
    differences: list[Difference] = []
    written_config: dict[str, Any] = {}  # DeepSpeed configuration of the first engine
    effective_config: dict[str, Any] = {}
    engines: list[EngineSettings] = []  # all of them, where there are several
    accelerators: list[str] = []  # of the first host, as its kernel lists them
    adapters: list[str] = []
    machine: dict[str, str] = {}  # kernel, driver, modules..., where all ranks have the same
    precision: dict[str, str] = {}  # what is multiplied fast, where all ranks have the same
    libraries: list[str] = []  # of communication, as ranks have loaded them
