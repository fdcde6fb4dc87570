"""The file that says where findings are sent while a run lasts: YAML, given explicitly."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from dsprof.errors import ConfigError
from dsprof.files.inputs import read_input

_LARGEST_BYTES = 1 << 16

Positive = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]


class OnFinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do when a finding is raised, or a run is stuck."""

    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] | None = None  # no shell
    webhook: str = ""  # address; a secret, as the headers are
    headers: dict[str, str] = {}
    severity: Literal["critical", "high", "medium", "low"] = "high"  # the least that is sent
    every_minutes: Positive = 15  # no two alerts within so long
    timeout_s: Positive = 30


class _File(msgspec.Struct, forbid_unknown_fields=True):
    on_finding: OnFinding


def load_alerts(path: Path) -> OnFinding:
    """Read a file of alerts.

    Raises:
        ConfigError: it cannot be read, or something in it is wrong. No address or header is quoted.
    """
    import yaml

    from dsprof.config.shallow_yaml import ShallowLoader

    try:
        plain = yaml.load(read_input(path, _LARGEST_BYTES), ShallowLoader)
        found = msgspec.convert(plain, _File).on_finding
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    except Exception as error:  # noqa: BLE001 - yaml raises what it likes, as of a date that is none
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}: invalid YAML{where}") from None
    if found.command is None and not found.webhook:
        raise ConfigError(f"{path}: on_finding needs a command or a webhook")
    if found.webhook and not _is_web_address(found.webhook):
        raise ConfigError(
            f"{path}: the webhook must be an address: https://HOST/... or http://HOST/..."
        )
    return found


def _is_web_address(text: str) -> bool:
    with suppress(ValueError):  # half an IPv6 address, a port that is none
        address = urlsplit(text)
        return address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    return False
