"""Pseudonyms for hosts, users and paths, so that a trace or a page can be shared."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping

import msgspec

from dsprof.environment import EnvSnapshot

_PATH = re.compile(r"(?<![\w.:/~…])~?/(?:[\w.+@~-]+/)+[\w.+@-]*|(?<=:)/(?:[\w.+@~-]+/)+[\w.+@-]*")
_ADDRESS = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
_IDENTIFYING = re.compile(r"(?:^|_)(?:USER|ACCOUNT|HOST|HOSTNAME|NODELIST|ADDR|IPADDR|JOB_NAME)$")


class Anonymizer:
    """Replaces hosts, users and paths in strings, the same way on all ranks.

    `salt` is any string that all ranks share: a host has the same pseudonym on each of them.
    """

    def __init__(self, salt: str = "", environ: Mapping[str, str] = os.environ) -> None:
        self._salt = salt
        self._hosts: dict[str, str] = {}
        self._users = _user_names(environ)
        self._home = os.path.expanduser("~").rstrip("/")
        for name in (os.uname().nodename, environ.get("MASTER_ADDR", "")):
            self.host(name)

    def host(self, name: str) -> str:
        """Return the pseudonym of a host, and replace that host in `text` from now on."""
        if name in ("", "localhost", "127.0.0.1", "::1"):
            return name
        if name not in self._hosts:
            digest = hashlib.sha256(f"{self._salt}\0{name}".encode(errors="replace")).hexdigest()
            self._hosts[name] = f"host-{digest[:6]}"
        return self._hosts[name]

    def path(self, path: str) -> str:
        """Keep the last part of an absolute path: "~/…/train.py" below home, else "/…/train.py"."""
        if not path.startswith(("/", "~/")):
            return path
        root = "~" if path.startswith("~/") or f"{path}/".startswith(f"{self._home}/") else ""
        return path if path.count("/") < 2 else f"{root}/…/{path.rsplit('/', 1)[1]}"

    def text(self, text: str) -> str:
        """Replace every path, host and user that occurs in `text`."""
        text = _PATH.sub(lambda match: self.path(match.group()), text)
        for name, pseudonym in self._hosts.items():
            text = _replace_word(text, name, pseudonym)
        for name in self._users:
            text = _replace_word(text, name, "user")
        return _ADDRESS.sub(lambda match: self.host(match.group()), text)


def anonymized(snapshot: EnvSnapshot, anonymizer: Anonymizer) -> EnvSnapshot:
    """Return a copy of `snapshot` without hosts, users and paths."""

    def values(found: Mapping[str, str]) -> dict[str, str]:
        return {name: _anonymous_value(name, value, anonymizer) for name, value in found.items()}

    return msgspec.structs.replace(
        snapshot,
        variables=values(snapshot.variables),
        effective=values(snapshot.effective),
        files={anonymizer.path(path): values(found) for path, found in snapshot.files.items()},
        libraries=[anonymizer.path(path) for path in snapshot.libraries],
    )


def _anonymous_value(name: str, value: str, anonymizer: Anonymizer) -> str:
    return anonymizer.host(value) if _IDENTIFYING.search(name) else anonymizer.text(value)


def _user_names(environ: Mapping[str, str]) -> list[str]:
    """Return the user's names; root is nobody's name and a common word."""
    names = {environ.get(name, "") for name in ("USER", "LOGNAME", "SLURM_JOB_USER")}
    return sorted(names - {"", "root"})


def _replace_word(text: str, word: str, replacement: str) -> str:
    return re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", replacement, text)
