"""Pseudonyms for hosts, users and paths, so that a trace or a page can be shared."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping

import msgspec

from dsprof.environment import EnvSnapshot

_PART = r"[\w.+@~%=#,()-]"
_PATHS = (
    # In quotes or brackets a path may have spaces; elsewhere it ends at one, unless more follows.
    r"(?<=[\"'])(?:~|\.{1,2})?/[^\"'\n]*(?=[\"'])|(?<=[\"'])[A-Za-z]:\\[^\"'\n]*(?=[\"'])"
    rf"|(?<![\w.:/~…<-])(?:~[\w.-]*)?/(?:{_PART}+(?:[ ]{_PART}+){{0,4}}/|{_PART}+/)+{_PART}*"
    rf"|(?<=[:=])~?/(?:{_PART}+/)+{_PART}*|(?<=://)/(?:{_PART}+/)+{_PART}*"
    rf"|(?<![\w\\])(?:[A-Za-z]:|\\)\\{{1,2}}(?:[^\\/:*?\"<>|\r\n]+\\{{1,2}})+{_PART}*"
)
_URL = r"(?<=://)(?:(?:<redacted>|[^\s/@\"'<>]{1,256})@)?(\[[0-9a-fA-F:.]+\]|[^\s/:\"'<>,\[\]]+)"
_FOLDERS_OF_URL = r"(?<=://)(host-\w+(?::\d+)?)(/[^\s\"'<>?#,;)\]]+)"
_OF_A_USER = r".*/(?:home|users?|Users)/[^/]+"
_MOUNT = (
    r"(?<![\w:/.@…~-])(?!(?:file|path|paths|folder|directory|dir|cwd|pwd|in|at|from|to|open|read"
    r"|error|warning|log|output|home|root):)([a-z\d][a-z\d-]+(?:\.[a-z\d-]+)*)(?=:~?/[\w.])"
)
"""The host of host:/folder, as NFS, rsync and ssh write it."""
_EMAIL = (
    r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+"
    r"|(?<![\w.@])[A-Za-z_][\w+-]{0,63}@(?!GLIBC|CXXABI)[A-Za-z][\w-]*"  # of ssh
)
_MAC = (
    r"(?<![\w:-])[0-9a-fA-F]{2}(?:([:-])[0-9a-fA-F]{2})(?:\1[0-9a-fA-F]{2}){4,18}(?!\w|[:-]\w)"
    r"|(?<![\w.])(?=[\d.]*[a-fA-F])[0-9a-fA-F]{4}(?:\.[0-9a-fA-F]{4}){2}(?![\w.])"
)
_POD = (
    r"(?<![\w./-])(?:[a-z\d][a-z\d-]*/)?[a-z\d]+(?:-[a-z\d]+)*"
    r"-(?:(?:worker|master|launcher|ps|chief|leader)-\d+|[a-f\d]{8,10}-[a-z\d]{5})(?![\w-]|\.\w)"
    r"|(?<![\w-])ip(?:-\d{1,3}){4}(?![\w-])"
)
"""Pods of Kubernetes as operators and deployments name them, and hosts of EC2."""
_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = rf"(?<![\w.])(?!127\.|0\.0\.0\.0){_BYTE}(?:\.{_BYTE}){{3}}(?![\w.])"
_IPV6 = (
    r"(?<![\w:.])(?!::1(?![\w:]))(?=[a-fA-F:]*\d)"
    r"(?=[0-9a-fA-F]{0,4}(?:(?::[0-9a-fA-F]{1,4}){0,6}::|(?::[0-9a-fA-F]{1,4}){5}))"
    r"(?:[0-9a-fA-F]{1,4}:){0,7}:?(?::?[0-9a-fA-F]{1,4}){1,8}(?:::)?(?:%\w+)?(?!\w|:\w)"
)
_UUID = r"(?<![0-9a-fA-F])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-fA-F])"
_DOMAIN = (
    r"(?<![\w@/.-])[A-Za-z0-9][\w-]*(?:\.[A-Za-z0-9][\w-]*)*"
    r"\.(?:com|org|net|edu|gov|mil|io|ai|dev|cloud|local|internal|lan|corp|cluster|svc|intra"
    r"|arpa|de|fr|uk|ch|eu|cn|jp|nl|au|ca|kr|sg|br|dk|pl|cz)"
    r"(?![\w-]|\.\w)"
)
_NUMBERED = (
    r"(?<![\w.-])[A-Za-z][\w-]*(?:\[(?:\d+[,-][\d,-]*|0\d+)\])+[\w-]*"
    r"(?:,[A-Za-z][\w-]*(?:\[[\d,-]+\])?)*"
)
"""Lists of nodes as Slurm writes them: gpu[001-004,007],login1."""

_HOST_LIKE = r"(?:^|_)(?:HOST|HOSTNAME|HOSTID|HOST_ID|NODENAME|NODELIST|ADDR|IPADDR)$"
_NAME_LIKE = (
    r"(?:^|_)(?:USER|ACCOUNT|JOB_NAME|JOB_GROUP|CLUSTER|CLUSTER_NAME|PARTITION|QOS|RESERVATION|RUN_ID"
    r"|COMM_ID|IF_IP|ADDR_PATTERN|TOPOLOGY_ADDR)$"
)
_LOCAL = ("", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::", "<redacted>")
_SHORTEST_IN_WORDS = 4  # shorter names are parts of too many words


class Anonymizer:
    """Replaces hosts, users and paths in strings, the same way on all ranks.

    `salt` is any string that all ranks share: a host has the same pseudonym on each of them.
    """

    def __init__(self, salt: str = "", environ: Mapping[str, str] = os.environ) -> None:
        self._salt = salt
        self._hosts: dict[str, str] = {}
        self._names = dict.fromkeys(_user_names(environ), "user")
        self._home = os.path.expanduser("~").rstrip("/")
        for name in _host_names(environ):
            self.host(name)
        for name in _group_names(environ):
            self.name(name)

    def host(self, name: str) -> str:
        """Return the pseudonym of a host, and replace that host in `text` from now on."""
        if name in _LOCAL:
            return name
        if name not in self._hosts:
            self._hosts[name] = f"host-{self._digest(name)}"
        return self._hosts[name]

    def name(self, name: str) -> str:
        """Return the pseudonym of a cluster, project or job, and replace it from now on."""
        if name in _LOCAL:
            return name
        return self._names.setdefault(name, f"name-{self._digest(name)}")

    def path(self, path: str) -> str:
        """Keep the last part of an absolute path: "~/…/train.py" below home, else "/…/train.py"."""
        if re.match(r"[A-Za-z]:\\|\\\\", path):
            return f"…\\{path.rpartition(chr(92))[2]}"
        if not path.startswith(("/", "~", "../", "./")):
            return path
        if re.fullmatch(_OF_A_USER, path):
            path = f"{path.rpartition('/')[0]}/user"
        root = "~" if path.startswith("~") or f"{path}/".startswith(f"{self._home}/") else ""
        return path if path.count("/") < 2 else f"{root}/…/{path.rsplit('/', 1)[1]}"

    def text(self, text: str) -> str:
        """Replace every path, host, address and user that occurs in `text`."""
        text = re.sub(_MOUNT, lambda found: self._host_in_text(found[1]), text)
        text = re.sub(_PATHS, lambda found: self.path(found.group()), text)
        text = re.sub(_EMAIL, "user@host", text)
        text = re.sub(_URL, lambda found: self._host_in_text(found[1]), text)
        text = re.sub(_FOLDERS_OF_URL, lambda found: f"{found[1]}{self.path(found[2])}", text)
        for name, pseudonym in sorted(self._hosts.items(), key=_longest_first):
            text = _replace_word(text, name, pseudonym)
        for name, pseudonym in sorted(self._names.items(), key=_longest_first):
            text = _replace_in_words(text, name, pseudonym)
        for pattern in (_NUMBERED, _POD, _MAC, _UUID, _IPV4, _IPV6, _DOMAIN):
            text = re.sub(pattern, lambda found: self._address(found.group()), text)
        return text

    def _host_in_text(self, host: str) -> str:
        known = host in _LOCAL or host.startswith("host-")
        return host if known else self._hosts.get(host, self._pseudonym(host))

    def _address(self, found: str) -> str:
        """Return the pseudonym of what was found; times and versions look like addresses, too."""
        return found if found.startswith("host-") or found in _LOCAL else self._pseudonym(found)

    def _pseudonym(self, found: str) -> str:
        return f"host-{self._digest(found)}"

    def _digest(self, name: str) -> str:
        return hashlib.sha256(f"{self._salt}\0{name}".encode(errors="replace")).hexdigest()[:6]


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
        machine={name: anonymizer.text(value) for name, value in snapshot.machine.items()},
    )


def _anonymous_value(name: str, value: str, anonymizer: Anonymizer) -> str:
    if re.search(_HOST_LIKE, name):
        return anonymizer.host(value)
    is_name = re.search(_NAME_LIKE, name)
    return anonymizer.name(value) if is_name else _anonymous_list(value, anonymizer)


def _anonymous_list(value: str, anonymizer: Anonymizer) -> str:
    """Replace what identifies in a value, which may be a list of paths."""
    if value.startswith(("/", "~")):
        return ":".join(anonymizer.path(path) for path in value.split(":"))
    return anonymizer.text(value)


def _user_names(environ: Mapping[str, str]) -> list[str]:
    """Return the user's names; root is a common word and no user's name."""
    names = {environ.get(name, "") for name in ("USER", "LOGNAME", "SLURM_JOB_USER")}
    names.add(os.path.basename(os.path.expanduser("~").rstrip("/")))
    return sorted(names - {"", "root", "user", "home"})


def _host_names(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the hosts that this process knows by name, with and without their domains."""
    known = ("MASTER_ADDR", "HOSTNAME", "HOST", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST")
    for name in (os.uname().nodename, *(environ.get(name, "") for name in known)):
        yield name
        if not re.fullmatch(r"[\d.]+|.*:.*", name):
            yield name.partition(".")[0]


def _group_names(environ: Mapping[str, str]) -> Iterator[str]:
    known = ("SLURM_CLUSTER_NAME", "SLURM_WORKING_CLUSTER", "SLURM_JOB_ACCOUNT", "SLURM_JOB_NAME")
    return (environ.get(name, "") for name in known)


def _longest_first(item: tuple[str, str]) -> int:
    return -len(item[0])


def _replace_word(text: str, word: str, replacement: str) -> str:
    return re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", replacement, text)


def _replace_in_words(text: str, name: str, replacement: str) -> str:
    """Replace a name also where it is part of a word: "alice-llama", "run_alice2"."""
    if len(name) < _SHORTEST_IN_WORDS:
        return _replace_word(text, name, replacement)
    return re.sub(rf"(?i)(?<![A-Za-z]){re.escape(name)}(?![a-z])", replacement, text)
